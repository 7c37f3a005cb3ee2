// SPDX-License-Identifier: MPL-2.0

package resource_test

import (
	"context"
	"strings"
	"testing"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/protobuf/proto"

	"github.com/wanfed/wanfed/api/pb"
	"github.com/wanfed/wanfed/resource"
	"github.com/wanfed/wanfed/resource/resourcetest"
	"github.com/wanfed/wanfed/tlsutil"
)

// TestService_Write checks the fields that the service sets.
func TestService_Write(t *testing.T) {
	f := newFixture(t, nil)
	given := node(t, "a", "10.0.0.1")
	given.Metadata = map[string]string{"k": "v"}
	given.PrimaryModifyIndex, given.CreateIndex, given.Generation = 7, 7, "given"
	first := f.write(given)
	if len(first.Id.Uid) != 26 || len(first.Generation) != 26 || first.Version == "" || first.PrimaryModifyIndex != 0 ||
		first.CreateIndex == 7 || first.Metadata["k"] != "v" || first.Id.Tenancy.GetNamespace() != "default" {
		t.Errorf("first Write() = %v, want new uid, generation and version, the given metadata and the default tenancy",
			first)
	}

	// A write keeps the status, and the generation if the data is the same.
	withStatus := proto.CloneOf(first)
	withStatus.Status = map[string]*pb.Status{"c": {ObservedGeneration: first.Generation}}
	if _, err := f.backend.Commit(t.Context(), resource.PutOp(withStatus, first.Version)); err != nil {
		t.Fatal(err)
	}
	same := f.write(node(t, "a", "10.0.0.1")) // no version, no metadata
	if same.Generation != first.Generation || same.Id.Uid != first.Id.Uid || same.Version == first.Version ||
		same.Status["c"] == nil || len(same.Metadata) != 0 {
		t.Errorf("Write() of the same data = %v, want another version, and uid, generation and status of %v", same,
			withStatus)
	}
	changed := proto.CloneOf(same)
	changed.Data = data(t, &pb.Node{Node: "a", Address: "10.0.0.2"})
	changed.Status = nil
	second := f.write(changed) // compare-and-swap
	if second.Generation == first.Generation || second.Status["c"] == nil {
		t.Errorf("Write() of other data = %v, want another generation, and the status of %v", second, same)
	}
	f.fails(changed, codes.Aborted, resource.ErrConflict,
		`write catalog/v1/Node "a": resource has changed: its version is `+second.Version+", not "+same.Version)
	r := node(t, "b", "")
	r.Version = "12"
	f.fails(r, codes.Aborted, resource.ErrConflict, "it does not exist")
	r = node(t, "b", "")
	r.Id.Uid = first.Id.Uid
	f.fails(r, codes.FailedPrecondition, resource.ErrUIDMismatch, "it does not exist")
	r = node(t, "a", "")
	r.Id.Uid = resource.NewUID()
	f.fails(r, codes.FailedPrecondition, resource.ErrUIDMismatch, second.Id.Uid)
}

// TestService_WriteNewVersion checks that a write with NewVersion never replaces
// a resource.
func TestService_WriteNewVersion(t *testing.T) {
	f := newFixture(t, nil)
	r := node(t, "a", "10.0.0.1")
	r.Version = resource.NewVersion
	created := f.write(r)
	f.fails(r, codes.Aborted, resource.ErrConflict, "its version is "+created.Version+", not 0")
	if got, err := f.Read(t.Context(), &pb.ReadRequest{Id: created.Id}); err != nil || !proto.Equal(got.Resource, created) {
		t.Errorf("Read() after a refused write = %v, %v, want %v", got, err, created)
	}
	if _, err := f.Delete(t.Context(), &pb.DeleteRequest{Id: created.Id}); err != nil {
		t.Fatalf("Delete() = %v, want nil", err)
	}
	if again := f.write(r); again.Id.Uid == created.Id.Uid {
		t.Errorf("Write() after the deletion = %v, want another uid", again)
	}
}

// TestService_Invalid checks the errors of invalid requests.
func TestService_Invalid(t *testing.T) {
	f := newFixture(t, nil)
	with := func(change func(r *pb.Resource)) *pb.Resource {
		r := node(t, "a", "")
		change(r)
		return r
	}
	for text, r := range map[string]*pb.Resource{
		`invalid name "A": must be`:            with(func(r *pb.Resource) { r.Id.Name = "A" }),
		`invalid type "//": is not registered`: with(func(r *pb.Resource) { r.Id = nil }),
		`invalid type "catalog/v2/Node": is not registered; known are `: with(func(r *pb.Resource) {
			r.Id.Type = &pb.Type{Group: "catalog", GroupVersion: "v2", Kind: "Node"}
		}),
		`invalid tenancy.partition "X": must be 1 to 63 characters`: with(func(r *pb.Resource) {
			r.Id.Tenancy = &pb.Tenancy{Partition: "X"}
		}),
		`invalid tenancy.namespace "*": must be 1 to 63 characters`: with(func(r *pb.Resource) {
			r.Id.Tenancy = &pb.Tenancy{Namespace: "*"}
		}),
		`its type is "", not "wanfed.v1.Node"`: with(func(r *pb.Resource) { r.Data = nil }),
		`its type is "wanfed.v1.Check", not "wanfed.v1.Node"`: with(func(r *pb.Resource) {
			r.Data = data(t, &pb.Check{})
		}),
		`not a wanfed.v1.Node`: with(func(r *pb.Resource) {
			r.Data.Value = []byte{0xff}
		}),
		`invalid version "*"`: with(func(r *pb.Resource) { r.Version = "*" }),
		`invalid owner catalog/v1/Node "none": must be stored`: with(func(r *pb.Resource) {
			r.Owner = &pb.ID{Type: nodeType, Name: "none"}
		}),
		`owner: invalid name "B"`: with(func(r *pb.Resource) {
			r.Owner = &pb.ID{Type: nodeType, Name: "B"}
		}),
		`owner: invalid type "//"`: with(func(r *pb.Resource) {
			r.Owner = &pb.ID{Name: "b"}
		}),
		`data.node "a": must be the resource's name`: with(func(r *pb.Resource) {
			r.Id.Type, r.Id.Name = hostType, "b"
		}),
	} {
		f.fails(r, codes.InvalidArgument, resource.ErrInvalid, text)
	}
	_, err := f.List(t.Context(), &pb.ListRequest{Type: nodeType, NamePrefix: "A"})
	f.check(err, codes.InvalidArgument, resource.ErrInvalid, `name_prefix "A"`)
	_, err = f.List(t.Context(), &pb.ListRequest{Type: nodeType, Tenancy: &pb.Tenancy{Partition: "-x"}})
	f.check(err, codes.InvalidArgument, resource.ErrInvalid, `tenancy.partition "-x"`)
	ctx := metadata.AppendToOutgoingContext(t.Context(), resource.ConsistencyKey, "sometimes")
	_, err = f.List(ctx, &pb.ListRequest{Type: nodeType})
	f.check(err, codes.InvalidArgument, resource.ErrInvalid, `"sometimes": must be "consistent" or "stale"`)
	_, err = f.Read(t.Context(), &pb.ReadRequest{Id: &pb.ID{Type: nodeType, Name: "a"}})
	f.check(err, codes.NotFound, resource.ErrNotFound, `catalog/v1/Node "a": resource not found`)
}

func TestNewService_Required(t *testing.T) {
	whole := resource.ServiceConfig{
		Backend: resourcetest.NewStore(), Registry: resource.NewRegistry(), DC: "dc1",
		Peer: resourcetest.PeerOf, Primary: func() bool { return true },
	}
	for missing, remove := range map[string]func(*resource.ServiceConfig){
		"Backend":  func(c *resource.ServiceConfig) { c.Backend = nil },
		"Registry": func(c *resource.ServiceConfig) { c.Registry = nil },
		"DC":       func(c *resource.ServiceConfig) { c.DC = "" },
		"Peer":     func(c *resource.ServiceConfig) { c.Peer = nil },
		"Primary":  func(c *resource.ServiceConfig) { c.Primary = nil },
	} {
		cfg := whole
		remove(&cfg)
		if _, err := resource.NewService(cfg); err == nil ||
			!strings.Contains(err.Error(), "."+missing+" is required") {
			t.Errorf("NewService() without %s = %v, want an error that names it", missing, err)
		}
	}
}

// TestService_Hooks checks Mutate and Authorize of a type.
func TestService_Hooks(t *testing.T) {
	f := newFixture(t, nil)
	host := func(name string) *pb.Resource {
		return &pb.Resource{Id: &pb.ID{Type: hostType, Name: name}, Data: data(t, &pb.Node{Node: name})}
	}
	n, err := resource.Decode[*pb.Node](f.write(host("n")))
	if err != nil || n.Address != "127.0.0.1" {
		t.Errorf("Write() stored %v, %v, want the address that Mutate sets", n, err)
	}
	f.as(tlsutil.RoleGateway, "dc1") // the gateway has the node name n
	f.write(host("n"))
	f.fails(host("other"), codes.PermissionDenied, resource.ErrDenied,
		"gateway/dc1/n may not write catalog/v1/Host: a gateway may write only itself")
}

// TestService_Federated checks that a secondary without PrimaryClient cannot
// write a federated type.
func TestService_Federated(t *testing.T) {
	f := newFixture(t, nil)
	fs := &pb.Resource{Id: &pb.ID{Type: fsType, Name: "dc2"}, Data: data(t, &pb.FederationState{Datacenter: "dc2"})}
	f.write(fs)
	f.primary.Store(false)
	f.fails(fs, codes.FailedPrecondition, resource.ErrFederated,
		"federation/v1/FederationState is federated: write it in the primary datacenter")
	_, err := f.Delete(t.Context(), &pb.DeleteRequest{Id: fs.Id})
	f.check(err, codes.FailedPrecondition, resource.ErrFederated, "write it in the primary datacenter")
	f.write(node(t, "a", "")) // not federated
	if _, err := f.Read(t.Context(), &pb.ReadRequest{Id: fs.Id}); err != nil {
		t.Errorf("Read() of a federated type in a secondary = %v, want nil", err)
	}
}

func TestService_Owner(t *testing.T) {
	f := newFixture(t, nil)
	owner := f.write(node(t, "o", ""))
	child := node(t, "c", "")
	child.Owner = &pb.ID{Type: nodeType, Name: "o"} // by name
	stored := f.write(child)
	if stored.Owner.GetUid() != owner.Id.Uid {
		t.Errorf("Write() with an owner by name stored owner %v, want uid %s", stored.Owner, owner.Id.Uid)
	}
	f.write(child) // with the same owner
	again := f.write(node(t, "c", "x"))
	if !proto.Equal(again.Owner, stored.Owner) {
		t.Errorf("Write() without an owner stored owner %v, want %v", again.Owner, stored.Owner)
	}
	child.Owner = &pb.ID{Type: nodeType, Name: "other"}
	f.fails(child, codes.InvalidArgument, resource.ErrInvalid, "must be as it was at creation")

	for _, ctx := range []context.Context{t.Context(), resource.WithConsistency(t.Context(), resource.Strong)} {
		for _, id := range []*pb.ID{owner.Id, {Type: nodeType, Name: "o"}} {
			out, err := f.ListByOwner(ctx, &pb.ListByOwnerRequest{Owner: id})
			if err != nil || len(out.GetResources()) != 1 || out.GetResources()[0].Id.Name != "c" {
				t.Errorf("ListByOwner(%v) = %v, %v, want c", id, out, err)
			}
		}
	}
	if _, err := f.Delete(t.Context(), &pb.DeleteRequest{Id: owner.Id}); err != nil {
		t.Fatal(err)
	}
	_, err := f.Read(t.Context(), &pb.ReadRequest{Id: stored.Id})
	f.check(err, codes.NotFound, resource.ErrNotFound, "")
}

func TestService_Delete(t *testing.T) {
	f := newFixture(t, nil)
	r := f.write(node(t, "a", ""))
	byName := &pb.ID{Type: nodeType, Name: "a"}
	_, err := f.Delete(t.Context(), &pb.DeleteRequest{Id: byName, Version: "1"})
	f.check(err, codes.Aborted, resource.ErrConflict, "its version is "+r.Version)
	for _, req := range []*pb.DeleteRequest{
		{Id: &pb.ID{Type: nodeType, Name: "a", Uid: resource.NewUID()}}, // no resource has the uid
		{Id: byName, Version: r.Version},
		{Id: byName, Version: r.Version}, // already deleted
		{Id: byName},
	} {
		if _, err := f.Delete(t.Context(), req); err != nil {
			t.Errorf("Delete(%v) = %v, want nil", req, err)
		}
	}
	_, err = f.Read(t.Context(), &pb.ReadRequest{Id: byName})
	f.check(err, codes.NotFound, resource.ErrNotFound, "")
}
