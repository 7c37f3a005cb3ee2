// SPDX-License-Identifier: MPL-2.0

package resource_test

import (
	"context"
	"errors"
	"testing"

	"google.golang.org/protobuf/proto"

	"github.com/wanfed/wanfed/api/pb"
	"github.com/wanfed/wanfed/resource"
	"github.com/wanfed/wanfed/resource/resourcetest"
	"github.com/wanfed/wanfed/tlsutil"
)

// newService returns a Service of dc1 whose caller is *who.
func newService(t *testing.T, b resource.Backend, who *tlsutil.Peer) *resource.Service {
	t.Helper()
	svc, err := resource.NewService(resource.ServiceConfig{
		Backend: b, Registry: registry(t), DC: "dc1", Primary: func() bool { return false },
		Peer: func(context.Context) (tlsutil.Peer, error) { return *who, nil },
	})
	if err != nil {
		t.Fatal(err)
	}
	return svc
}

func bare(t *testing.T, name, address string) *pb.Resource {
	t.Helper()
	r, err := resource.New(nodeType, name, &pb.Node{Node: name, Address: address})
	if err != nil {
		t.Fatal(err)
	}
	r.Id.Uid, r.Generation = "", ""
	return r
}

func TestWriteAll(t *testing.T) {
	b := resourcetest.NewStore()
	defer b.Close()
	who := &tlsutil.Peer{Role: tlsutil.RoleOperator, DC: "dc1", Node: "joe"}
	svc, ctx := newService(t, b, who), t.Context()

	child := bare(t, "b", "192.0.2.2")
	child.Owner = &pb.ID{Type: nodeType, Name: "a"} // created by the same call
	out, err := svc.WriteAll(ctx, resource.Step{Write: bare(t, "a", "192.0.2.1"), Create: true}, resource.Step{Write: child, Create: true})
	if err != nil {
		t.Fatal(err)
	}
	a := out[0]
	if len(out) != 2 || out[1].GetOwner().GetUid() != a.GetId().GetUid() || a.Generation == "" || a.ModifyIndex != out[1].ModifyIndex {
		t.Fatalf("WriteAll() = %v", out)
	}

	for name, test := range map[string]struct {
		steps []resource.Step
		want  error
	}{
		"one that is there must be new": {[]resource.Step{{Write: bare(t, "c", "x"), Create: true}, {Write: bare(t, "a", "x"), Create: true}}, resource.ErrConflict},
		"another version":               {[]resource.Step{{Write: bare(t, "c", "x"), Create: true}, {Write: versioned(a, "9999")}}, resource.ErrConflict},
		"deletion of another version":   {[]resource.Step{{Write: bare(t, "c", "x"), Create: true}, {Delete: resource.ID(nodeType, "a"), Version: "9999"}}, resource.ErrConflict},
		"bad name":                      {[]resource.Step{{Write: bare(t, "c", "x"), Create: true}, {Delete: resource.ID(nodeType, "A")}}, resource.ErrInvalid},
		"federated type":                {[]resource.Step{{Delete: resource.ID(fsType, "dc1")}}, resource.ErrFederated},
		"no change":                     {[]resource.Step{{}}, resource.ErrInvalid},
	} {
		if _, err := svc.WriteAll(ctx, test.steps...); !errors.Is(err, test.want) {
			t.Errorf("WriteAll() with %s = %v, want %v", name, err, test.want)
		}
	}
	*who = tlsutil.Peer{Role: tlsutil.RoleClient, DC: "dc1", Node: "app"}
	if _, err := svc.WriteAll(ctx, resource.Step{Write: bare(t, "c", "x")}); !errors.Is(err, resource.ErrDenied) {
		t.Errorf("write of a client = %v, want ErrDenied", err)
	}
	if err := svc.Allow(ctx, resource.VerbRead, nodeType); err != nil {
		t.Errorf("read of a client = %v, want nil", err)
	}
	who.DC = "dc2"
	if err := svc.Allow(ctx, resource.VerbRead, nodeType); !errors.Is(err, resource.ErrDenied) {
		t.Errorf("read of a client of another datacenter = %v, want ErrDenied", err)
	}
	*who = tlsutil.Peer{Role: tlsutil.RoleOperator, DC: "dc1", Node: "joe"}
	if all, _, err := b.List(ctx, resource.Strong, resource.Query{Type: nodeType}); err != nil || len(all) != 2 {
		t.Errorf("nodes after failed calls = %d, %v", len(all), err)
	}

	// Deleted and created in one step: a new resource, whose owned ones are deleted.
	out, err = svc.WriteAll(ctx, resource.Step{Delete: a.Id}, resource.Step{Write: bare(t, "a", "192.0.2.9"), Create: true})
	if err != nil || out[0] != nil || out[1].GetId().GetUid() == a.GetId().GetUid() {
		t.Fatalf("WriteAll() = %v, %v, want a new uid", out, err)
	}
	if _, err := b.Read(ctx, resource.Strong, resource.ID(nodeType, "b")); !errors.Is(err, resource.ErrNotFound) {
		t.Errorf("Read() of the owned resource = %v, want ErrNotFound", err)
	}
	if _, err := svc.WriteAll(ctx, resource.Step{Write: versioned(out[1], out[1].Version)}); err != nil {
		t.Errorf("deletion with a version = %v", err)
	}
}

func versioned(r *pb.Resource, version string) *pb.Resource {
	r = proto.CloneOf(r)
	r.Id.Uid, r.Owner, r.Version = "", nil, version
	return r
}
