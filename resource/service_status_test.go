// SPDX-License-Identifier: MPL-2.0

package resource_test

import (
	"errors"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/protobuf/proto"

	"github.com/wanfed/wanfed/api/pb"
	"github.com/wanfed/wanfed/resource"
	"github.com/wanfed/wanfed/resource/resourcetest"
	"github.com/wanfed/wanfed/tlsutil"
)

func TestServiceWriteStatus(t *testing.T) {
	g := newRig(t, nil)
	r := g.write(node(t, "a", "10.0.0.1"))
	status := &pb.Status{ObservedGeneration: r.Generation, Conditions: []*pb.Condition{{
		Type: "Ready", State: pb.Condition_STATE_FALSE, Resource: &pb.Reference{Type: nodeType, Name: "b"},
	}}}
	out, err := g.WriteStatus(t.Context(), &pb.WriteStatusRequest{Id: r.Id, Version: r.Version, Key: "x.io/c", Status: status})
	if err != nil {
		t.Fatal(err)
	}
	got := out.GetResource()
	at := got.GetStatus()["x.io/c"].GetUpdatedAt().AsTime()
	if got.Generation != r.Generation || got.Version == r.Version || time.Since(at) > time.Minute ||
		!proto.Equal(got.Status["x.io/c"].Conditions[0], status.Conditions[0]) || !proto.Equal(got.Data, r.Data) {
		t.Errorf("WriteStatus() = %v", got)
	}
	out, err = g.WriteStatus(t.Context(), &pb.WriteStatusRequest{Id: r.Id, Key: "other", Status: status})
	if err != nil || len(out.GetResource().GetStatus()) != 2 {
		t.Errorf("WriteStatus() with another key = %v, %v", out, err)
	}

	good := &pb.WriteStatusRequest{Id: r.Id, Key: "c", Status: status}
	for _, tc := range []struct {
		change func(q *pb.WriteStatusRequest)
		code   codes.Code
		want   error
		text   string
	}{
		{func(q *pb.WriteStatusRequest) { q.Id.Uid = "" }, codes.InvalidArgument, resource.ErrInvalid, `id.uid "": must be`},
		{func(q *pb.WriteStatusRequest) { q.Key = "" }, codes.InvalidArgument, resource.ErrInvalid, `key "": must be 1 to 253`},
		{func(q *pb.WriteStatusRequest) { q.Status = nil }, codes.InvalidArgument, resource.ErrInvalid, "status: it is missing"},
		{func(q *pb.WriteStatusRequest) { q.Status.ObservedGeneration = "" }, codes.InvalidArgument, resource.ErrInvalid, "status.observed_generation"},
		{func(q *pb.WriteStatusRequest) { q.Status.Conditions[0].Type = "" }, codes.InvalidArgument, resource.ErrInvalid, "status.conditions[0].type"},
		{func(q *pb.WriteStatusRequest) { q.Version = "*" }, codes.InvalidArgument, resource.ErrInvalid, `version "*"`},
		{func(q *pb.WriteStatusRequest) { q.Version = r.Version }, codes.Aborted, resource.ErrConflict, "not " + r.Version},
		{func(q *pb.WriteStatusRequest) { q.Id.Uid = resource.NewUID() }, codes.FailedPrecondition, resource.ErrUIDMismatch, r.Id.Uid},
		{func(q *pb.WriteStatusRequest) { q.Id.Name = "none" }, codes.NotFound, resource.ErrNotFound, "none"},
		{func(q *pb.WriteStatusRequest) { q.Id.Type = fsType; q.Id.Tenancy.Partition = "x" }, codes.InvalidArgument, resource.ErrInvalid, "tenancy.partition"},
	} {
		q := proto.CloneOf(good)
		tc.change(q)
		_, err := g.WriteStatus(t.Context(), q)
		g.check(err, tc.code, tc.want, tc.text)
	}
	g.as(tlsutil.RoleClient, "dc1")
	_, err = g.WriteStatus(t.Context(), good)
	g.check(err, codes.PermissionDenied, resource.ErrDenied, "client/dc1/n may not write the status of catalog/v1/Node")
}

// TestServiceStatusIsLocal checks that a secondary writes the status of a federated
// resource, but not its data.
func TestServiceStatusIsLocal(t *testing.T) {
	g := newRig(t, nil)
	fs := g.write(&pb.Resource{Id: &pb.ID{Type: fsType, Name: "dc2"}, Data: data(t, &pb.FederationState{Datacenter: "dc2"})})
	g.primary.Store(false)
	if _, err := g.WriteStatus(t.Context(), &pb.WriteStatusRequest{Id: fs.Id, Key: "c", Status: &pb.Status{ObservedGeneration: fs.Generation}}); err != nil {
		t.Error(err)
	}
}

func TestServiceFinalizers(t *testing.T) {
	g := newRig(t, nil)
	r := node(t, "a", "10.0.0.1")
	resourcetest.AddFinalizer(r, "x")
	r = g.write(r)
	if _, err := g.Delete(t.Context(), &pb.DeleteRequest{Id: r.Id}); err != nil {
		t.Fatal(err)
	}
	read, err := g.Read(t.Context(), &pb.ReadRequest{Id: r.Id})
	if err != nil {
		t.Fatal(err)
	}
	marked := read.GetResource()
	g.fails(node(t, "a", "10.0.0.2"), codes.FailedPrecondition, resource.ErrTerminating, "only its finalizers may be removed")
	if _, err := g.WriteStatus(t.Context(), &pb.WriteStatusRequest{Id: r.Id, Key: "c", Status: &pb.Status{ObservedGeneration: r.Generation}}); err != nil {
		t.Error(err)
	}
	marked.Version = "" // with any status
	resourcetest.RemoveFinalizer(marked, "x")
	g.write(marked)
	_, err = g.Read(t.Context(), &pb.ReadRequest{Id: r.Id})
	g.check(err, codes.NotFound, resource.ErrNotFound, "")
}

func TestServiceDryRun(t *testing.T) {
	g := newRig(t, nil)
	dry := func(r *pb.Resource) (*pb.Resource, error) {
		out, err := g.MutateAndValidate(t.Context(), &pb.MutateAndValidateRequest{Resource: r})
		return out.GetResource(), err
	}
	got, err := dry(&pb.Resource{Id: &pb.ID{Type: hostType, Name: "n"}, Data: data(t, &pb.Node{Node: "n"})})
	if err != nil {
		t.Fatal(err)
	}
	if n, err := resource.Decode[*pb.Node](got); err != nil || n.Address != "127.0.0.1" || got.Id.Tenancy.GetPartition() != "default" {
		t.Errorf("data after Mutate = %v, %v", got, err)
	}
	_, err = g.Read(t.Context(), &pb.ReadRequest{Id: got.Id})
	g.check(err, codes.NotFound, resource.ErrNotFound, "")
	_, err = dry(&pb.Resource{Id: &pb.ID{Type: hostType, Name: "b"}, Data: data(t, &pb.Node{Node: "a"})})
	g.check(err, codes.InvalidArgument, resource.ErrInvalid, `data.node "a"`)
	large := node(t, "a", "")
	large.Metadata = map[string]string{"k": strings.Repeat("x", resource.MaxSize)}
	_, err = dry(large)
	g.check(err, codes.InvalidArgument, resource.ErrInvalid, `size of catalog/v1/Node "a"`)
	g.as(tlsutil.RoleClient, "dc1")
	_, err = dry(node(t, "a", ""))
	g.check(err, codes.PermissionDenied, resource.ErrDenied, "may not write")
}

func TestServiceScopes(t *testing.T) {
	g := newRig(t, nil)
	write := func(typ *pb.Type, partition, namespace string) (*pb.Tenancy, error) {
		r := node(t, "a", "")
		r.Id.Type, r.Id.Tenancy = typ, &pb.Tenancy{Partition: partition, Namespace: namespace}
		if typ == fsType {
			r.Data = data(t, &pb.FederationState{Datacenter: "a"})
		}
		out, err := g.Write(t.Context(), &pb.WriteRequest{Resource: r})
		return out.GetResource().GetId().GetTenancy(), err
	}
	for _, tc := range []struct {
		typ                  *pb.Type
		partition, namespace string
		want                 string // or the error
	}{
		{nodeType, "", "", "default/default"}, {nodeType, "p", "", "p/default"}, {nodeType, "p", "n", "p/n"},
		{zoneType, "", "", "default/"}, {zoneType, "p", "", "p/"}, {zoneType, "p", "default", "p/"},
		{zoneType, "p", "n", `invalid tenancy.namespace "n": must be empty: resources of this type have the scope partition`},
		{fsType, "", "", "/"}, {fsType, "default", "default", "/"},
		{fsType, "p", "", `invalid tenancy.partition "p": must be empty: resources of this type have the scope cluster`},
		{nodeType, "*", "", `invalid tenancy.partition "*": must be 1 to 63`}, {nodeType, "", "-n", `invalid tenancy.namespace "-n"`},
	} {
		got, err := write(tc.typ, tc.partition, tc.namespace)
		if err != nil {
			g.check(err, codes.InvalidArgument, resource.ErrInvalid, tc.want)
		} else if s := got.GetPartition() + "/" + got.GetNamespace(); s != tc.want {
			t.Errorf("tenancy of %s written to %q/%q = %s, want %s", tc.typ.Kind, tc.partition, tc.namespace, s, tc.want)
		}
	}
	for _, tc := range []struct {
		typ     *pb.Type
		tenancy *pb.Tenancy
		want    int
	}{
		{nodeType, nil, 1}, {nodeType, &pb.Tenancy{Partition: "p", Namespace: "*"}, 2}, {nodeType, &pb.Tenancy{Partition: "*", Namespace: "*"}, 3},
		{zoneType, &pb.Tenancy{Partition: "*"}, 2}, {zoneType, &pb.Tenancy{Partition: "*", Namespace: "*"}, 2}, {zoneType, &pb.Tenancy{Partition: "p"}, 1},
		{fsType, nil, 1}, {fsType, &pb.Tenancy{Partition: "*", Namespace: "*"}, 1},
	} {
		out, err := g.List(t.Context(), &pb.ListRequest{Type: tc.typ, Tenancy: tc.tenancy})
		if err != nil || len(out.GetResources()) != tc.want {
			t.Errorf("List(%s) in %v = %v, %v, want %d", tc.typ.Kind, tc.tenancy, out, err, tc.want)
		}
	}
}

// TestServiceGroupVersion checks that a mismatch has the stored resource in its
// details, and that a write converts it.
func TestServiceGroupVersion(t *testing.T) {
	g := newRig(t, nil)
	zone := func(typ *pb.Type) *pb.Resource {
		return &pb.Resource{Id: &pb.ID{Type: typ, Name: "z"}, Data: data(t, &pb.Node{Node: "z"})}
	}
	v1 := g.write(zone(zoneType))
	_, err := g.Read(t.Context(), &pb.ReadRequest{Id: zone(zone2Type).Id})
	g.check(err, codes.InvalidArgument, resource.ErrGroupVersion, "v1, not v2")
	mismatch, ok := errors.AsType[*resource.GroupVersionError](resource.FromStatus(err))
	if !ok || !proto.Equal(mismatch.Stored, v1) || mismatch.Requested.GetGroupVersion() != "v2" {
		t.Errorf("details have %v", mismatch)
	}
	_, err = g.Delete(t.Context(), &pb.DeleteRequest{Id: zone(zone2Type).Id})
	g.check(err, codes.InvalidArgument, resource.ErrGroupVersion, "v1, not v2")
	v2 := g.write(zone(zone2Type))
	if v2.Id.Uid != v1.Id.Uid || v2.Id.Type.GroupVersion != "v2" {
		t.Errorf("Write() as v2 = %v", v2)
	}
	_, err = g.Read(t.Context(), &pb.ReadRequest{Id: v1.Id})
	g.check(err, codes.InvalidArgument, resource.ErrGroupVersion, "v2, not v1")
}

// TestServiceConsistencyKeys checks that both keys select a strong read.
func TestServiceConsistencyKeys(t *testing.T) {
	g := newRig(t, nil)
	for _, key := range []string{resource.ConsistencyKey, resource.ConsulConsistencyKey} {
		if _, err := g.List(metadata.AppendToOutgoingContext(t.Context(), key, "consistent"), &pb.ListRequest{Type: nodeType}); err != nil {
			t.Errorf("Read() with %s = %v", key, err)
		}
		_, err := g.List(metadata.AppendToOutgoingContext(t.Context(), key, "maybe"), &pb.ListRequest{Type: nodeType})
		g.check(err, codes.InvalidArgument, resource.ErrInvalid, key+` "maybe"`)
	}
}
