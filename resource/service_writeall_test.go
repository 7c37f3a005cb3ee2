// SPDX-License-Identifier: MPL-2.0

package resource_test

import (
	"errors"
	"testing"

	"google.golang.org/protobuf/proto"

	"github.com/wanfed/wanfed/api/pb"
	"github.com/wanfed/wanfed/resource"
	"github.com/wanfed/wanfed/resource/resourcetest"
	"github.com/wanfed/wanfed/tlsutil"
)

// newSecondary returns a Service of the secondary dc1 with a new store. Its
// calls come from caller.
func newSecondary(t *testing.T, caller *tlsutil.Peer) (*resource.Service, *resourcetest.Store) {
	t.Helper()
	store := resourcetest.NewStore()
	t.Cleanup(store.Close)
	svc, err := resourcetest.NewService(store, caller, registerTypes)
	if err != nil {
		t.Fatal(err)
	}
	return svc, store
}

// createStep returns a step that creates a node.
func createStep(t *testing.T, name, address string) resource.Step {
	return resource.Step{Write: node(t, name, address), Create: true}
}

// versioned returns a copy of r that is valid as a write of the version.
func versioned(r *pb.Resource, version string) *pb.Resource {
	r = proto.CloneOf(r)
	r.Id.Uid, r.Owner, r.Version = "", nil, version
	return r
}

// writeOwnerAndOwned creates the nodes a and b in one call. Node a owns b.
func writeOwnerAndOwned(t *testing.T, svc *resource.Service) (a, b *pb.Resource) {
	t.Helper()
	owned := createStep(t, "b", "192.0.2.2")
	owned.Write.Owner = &pb.ID{Type: nodeType, Name: "a"}
	out, err := svc.WriteAll(t.Context(), createStep(t, "a", "192.0.2.1"), owned)
	if err != nil || len(out) != 2 {
		t.Fatalf("WriteAll(create a, create b) = %v, %v, want two resources", out, err)
	}
	return out[0], out[1]
}

// TestWriteAll checks that all steps are one commit, in which a step may use
// the result of an earlier step.
func TestWriteAll(t *testing.T) {
	svc, store := newSecondary(t, resourcetest.Operator())
	a, b := writeOwnerAndOwned(t, svc)
	if b.GetOwner().GetUid() != a.GetId().GetUid() || a.Generation == "" || a.ModifyIndex != b.ModifyIndex {
		t.Errorf("WriteAll(create a, create b) = %v and %v, want a as the owner of b, and one index", a, b)
	}
	out, err := svc.WriteAll(t.Context(), resource.Step{Delete: a.Id}, createStep(t, "a", "192.0.2.9"))
	if err != nil || out[0] != nil || out[1].GetId().GetUid() == a.GetId().GetUid() {
		t.Fatalf("WriteAll(delete a, create a) = %v, %v, want a new uid", out, err)
	}
	if _, err := store.Read(t.Context(), resource.Strong, b.Id); !errors.Is(err, resource.ErrNotFound) {
		t.Errorf("Read(b) after the deletion of its owner = %v, want ErrNotFound", err)
	}
	if _, err := svc.WriteAll(t.Context(), resource.Step{Write: versioned(out[1], out[1].Version)}); err != nil {
		t.Errorf("WriteAll(write a with its version) = %v, want nil", err)
	}
}

// TestWriteAll_Fails checks that a step that fails undoes the other steps.
func TestWriteAll_Fails(t *testing.T) {
	svc, store := newSecondary(t, resourcetest.Operator())
	a, _ := writeOwnerAndOwned(t, svc)
	for name, test := range map[string]struct {
		step resource.Step
		want error
	}{
		"create of an existing node": {createStep(t, "a", "x"), resource.ErrConflict},
		"write with another version": {resource.Step{Write: versioned(a, "9999")}, resource.ErrConflict},
		"delete with another version": {resource.Step{Delete: resource.ID(nodeType, "a"), Version: "9999"},
			resource.ErrConflict},
		"delete of an invalid name":    {resource.Step{Delete: resource.ID(nodeType, "A")}, resource.ErrInvalid},
		"delete of a federated type":   {resource.Step{Delete: resource.ID(fsType, "dc1")}, resource.ErrFederated},
		"neither a write nor a delete": {resource.Step{}, resource.ErrInvalid},
	} {
		if _, err := svc.WriteAll(t.Context(), createStep(t, "c", "x"), test.step); !errors.Is(err, test.want) {
			t.Errorf("WriteAll() with a %s = %v, want %v", name, err, test.want)
		}
	}
	if all, _, err := store.List(t.Context(), resource.Strong, resource.Query{Type: nodeType}); err != nil ||
		len(all) != 2 {
		t.Errorf("List() after failed calls = %d nodes, %v, want 2", len(all), err)
	}
}

func TestWriteAll_Denied(t *testing.T) {
	caller := &tlsutil.Peer{Role: tlsutil.RoleClient, DC: "dc1", Node: "app"}
	svc, _ := newSecondary(t, caller)
	if _, err := svc.WriteAll(t.Context(), createStep(t, "c", "x")); !errors.Is(err, resource.ErrDenied) {
		t.Errorf("WriteAll() by a client = %v, want ErrDenied", err)
	}
	if err := svc.Allow(t.Context(), resource.VerbRead, nodeType, "n"); err != nil {
		t.Errorf("Allow(read) by a client = %v, want nil", err)
	}
	caller.DC = "dc2"
	if err := svc.Allow(t.Context(), resource.VerbWrite, nodeType, "n"); !errors.Is(err, resource.ErrDenied) {
		t.Errorf("Allow(write) by a client of another datacenter = %v, want ErrDenied", err)
	}
}
