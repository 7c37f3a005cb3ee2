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

func TestService_WriteStatus(t *testing.T) {
	f := newFixture(t, nil)
	r := f.write(node(t, "a", "10.0.0.1"))
	status := &pb.Status{ObservedGeneration: r.Generation, Conditions: []*pb.Condition{{
		Type: "Ready", State: pb.Condition_STATE_FALSE, Resource: &pb.Reference{Type: nodeType, Name: "b"},
	}}}
	out, err := f.WriteStatus(t.Context(), &pb.WriteStatusRequest{
		Id: r.Id, Version: r.Version, Key: "x.io/c", Status: status,
	})
	if err != nil {
		t.Fatal(err)
	}
	got := out.GetResource()
	at := got.GetStatus()["x.io/c"].GetUpdatedAt().AsTime()
	if got.Generation != r.Generation || got.Version == r.Version || time.Since(at) > time.Minute ||
		!proto.Equal(got.Status["x.io/c"].Conditions[0], status.Conditions[0]) || !proto.Equal(got.Data, r.Data) {
		t.Errorf("WriteStatus() = %v, want the status with a new version, and the generation and data of %v", got, r)
	}
	out, err = f.WriteStatus(t.Context(), &pb.WriteStatusRequest{Id: r.Id, Key: "other", Status: status})
	if err != nil || len(out.GetResource().GetStatus()) != 2 {
		t.Errorf("WriteStatus() with another key = %v, %v, want two statuses", out, err)
	}
}

func TestService_WriteStatusRefused(t *testing.T) {
	f := newFixture(t, nil)
	r := f.write(node(t, "a", "10.0.0.1"))
	if _, err := f.WriteStatus(t.Context(), &pb.WriteStatusRequest{
		Id: r.Id, Key: "other", Status: &pb.Status{ObservedGeneration: r.Generation},
	}); err != nil { // after this call, the version of r is old
		t.Fatal(err)
	}
	good := &pb.WriteStatusRequest{Id: r.Id, Key: "c", Status: &pb.Status{
		ObservedGeneration: r.Generation, Conditions: []*pb.Condition{{Type: "Ready"}},
	}}
	for _, tc := range []struct {
		change func(q *pb.WriteStatusRequest)
		code   codes.Code
		want   error
		text   string
	}{
		{func(q *pb.WriteStatusRequest) { q.Id.Uid = "" }, codes.InvalidArgument, resource.ErrInvalid,
			`id.uid "": must be`},
		{func(q *pb.WriteStatusRequest) { q.Key = "" }, codes.InvalidArgument, resource.ErrInvalid,
			`key "": must be 1 to 253`},
		{func(q *pb.WriteStatusRequest) { q.Status = nil }, codes.InvalidArgument, resource.ErrInvalid,
			"status: it is missing"},
		{func(q *pb.WriteStatusRequest) { q.Status.ObservedGeneration = "" }, codes.InvalidArgument,
			resource.ErrInvalid, "status.observed_generation"},
		{func(q *pb.WriteStatusRequest) { q.Status.Conditions[0].Type = "" }, codes.InvalidArgument,
			resource.ErrInvalid, "status.conditions[0].type"},
		{func(q *pb.WriteStatusRequest) { q.Version = "*" }, codes.InvalidArgument, resource.ErrInvalid, `version "*"`},
		{func(q *pb.WriteStatusRequest) { q.Version = r.Version }, codes.Aborted, resource.ErrConflict,
			"not " + r.Version},
		{func(q *pb.WriteStatusRequest) { q.Id.Uid = resource.NewUID() }, codes.FailedPrecondition,
			resource.ErrUIDMismatch, r.Id.Uid},
		{func(q *pb.WriteStatusRequest) { q.Id.Name = "none" }, codes.NotFound, resource.ErrNotFound, "none"},
		{func(q *pb.WriteStatusRequest) { q.Id.Type = fsType; q.Id.Tenancy.Partition = "x" }, codes.InvalidArgument,
			resource.ErrInvalid, "tenancy.partition"},
	} {
		q := proto.CloneOf(good)
		tc.change(q)
		_, err := f.WriteStatus(t.Context(), q)
		f.check(err, tc.code, tc.want, tc.text)
	}
	f.as(tlsutil.RoleClient, "dc1")
	_, err := f.WriteStatus(t.Context(), good)
	f.check(err, codes.PermissionDenied, resource.ErrDenied, "client/dc1/n may not write the status of catalog/v1/Node")
}

// TestService_WriteStatusInSecondary checks that a secondary writes the status
// of a resource of a federated type.
func TestService_WriteStatusInSecondary(t *testing.T) {
	f := newFixture(t, nil)
	fs := f.write(&pb.Resource{Id: &pb.ID{Type: fsType, Name: "dc2"},
		Data: data(t, &pb.FederationState{Datacenter: "dc2"})})
	f.primary.Store(false)
	req := &pb.WriteStatusRequest{Id: fs.Id, Key: "c", Status: &pb.Status{ObservedGeneration: fs.Generation}}
	if _, err := f.WriteStatus(t.Context(), req); err != nil {
		t.Errorf("WriteStatus() in a secondary = %v, want nil", err)
	}
}

// TestService_Finalizers checks the writes that are allowed after a deletion
// timestamp.
func TestService_Finalizers(t *testing.T) {
	f := newFixture(t, nil)
	r := node(t, "a", "10.0.0.1")
	resourcetest.AddFinalizer(r, "x")
	r = f.write(r)
	if _, err := f.Delete(t.Context(), &pb.DeleteRequest{Id: r.Id}); err != nil {
		t.Fatal(err)
	}
	read, err := f.Read(t.Context(), &pb.ReadRequest{Id: r.Id})
	if err != nil {
		t.Fatal(err)
	}
	marked := read.GetResource()
	f.fails(node(t, "a", "10.0.0.2"), codes.FailedPrecondition, resource.ErrTerminating,
		"only its finalizers may be removed")
	req := &pb.WriteStatusRequest{Id: r.Id, Key: "c", Status: &pb.Status{ObservedGeneration: r.Generation}}
	if _, err := f.WriteStatus(t.Context(), req); err != nil {
		t.Errorf("WriteStatus() after the deletion timestamp = %v, want nil", err)
	}
	marked.Version = "" // the status has changed the version
	resourcetest.RemoveFinalizer(marked, "x")
	f.write(marked)
	_, err = f.Read(t.Context(), &pb.ReadRequest{Id: r.Id})
	f.check(err, codes.NotFound, resource.ErrNotFound, "")
}

// TestService_MutateAndValidate checks that a dry run applies Mutate and
// Validate, and writes nothing.
func TestService_MutateAndValidate(t *testing.T) {
	f := newFixture(t, nil)
	dryRun := func(r *pb.Resource) (*pb.Resource, error) {
		out, err := f.MutateAndValidate(t.Context(), &pb.MutateAndValidateRequest{Resource: r})
		return out.GetResource(), err
	}
	got, err := dryRun(&pb.Resource{Id: &pb.ID{Type: hostType, Name: "n"}, Data: data(t, &pb.Node{Node: "n"})})
	if err != nil {
		t.Fatal(err)
	}
	if n, err := resource.Decode[*pb.Node](got); err != nil || n.Address != "127.0.0.1" ||
		got.Id.Tenancy.GetPartition() != "default" {
		t.Errorf("MutateAndValidate() = %v, %v, want address 127.0.0.1 and partition default", got, err)
	}
	_, err = f.Read(t.Context(), &pb.ReadRequest{Id: got.Id})
	f.check(err, codes.NotFound, resource.ErrNotFound, "")
	_, err = dryRun(&pb.Resource{Id: &pb.ID{Type: hostType, Name: "b"}, Data: data(t, &pb.Node{Node: "a"})})
	f.check(err, codes.InvalidArgument, resource.ErrInvalid, `data.node "a"`)
	large := node(t, "a", "")
	large.Metadata = map[string]string{"k": strings.Repeat("x", resource.MaxSize)}
	_, err = dryRun(large)
	f.check(err, codes.InvalidArgument, resource.ErrInvalid, `size of catalog/v1/Node "a"`)
	f.as(tlsutil.RoleClient, "dc1")
	_, err = dryRun(node(t, "a", ""))
	f.check(err, codes.PermissionDenied, resource.ErrDenied, "may not write")
}

// TestService_Scopes checks the tenancy of written and listed resources for
// each scope.
func TestService_Scopes(t *testing.T) {
	f := newFixture(t, nil)
	write := func(typ *pb.Type, partition, namespace string) (*pb.Tenancy, error) {
		r := node(t, "a", "")
		r.Id.Type, r.Id.Tenancy = typ, &pb.Tenancy{Partition: partition, Namespace: namespace}
		if typ == fsType {
			r.Data = data(t, &pb.FederationState{Datacenter: "a"})
		}
		out, err := f.Write(t.Context(), &pb.WriteRequest{Resource: r})
		return out.GetResource().GetId().GetTenancy(), err
	}
	for _, tc := range []struct {
		typ                  *pb.Type
		partition, namespace string
		want                 string // partition/namespace, or the error
	}{
		{nodeType, "", "", "default/default"}, {nodeType, "p", "", "p/default"}, {nodeType, "p", "n", "p/n"},
		{zoneType, "", "", "default/"}, {zoneType, "p", "", "p/"}, {zoneType, "p", "default", "p/"},
		{zoneType, "p", "n",
			`invalid tenancy.namespace "n": must be empty: resources of this type have the scope partition`},
		{fsType, "", "", "/"}, {fsType, "default", "default", "/"},
		{fsType, "p", "",
			`invalid tenancy.partition "p": must be empty: resources of this type have the scope cluster`},
		{nodeType, "*", "", `invalid tenancy.partition "*": must be 1 to 63`},
		{nodeType, "", "-n", `invalid tenancy.namespace "-n"`},
	} {
		got, err := write(tc.typ, tc.partition, tc.namespace)
		if err != nil {
			f.check(err, codes.InvalidArgument, resource.ErrInvalid, tc.want)
		} else if s := got.GetPartition() + "/" + got.GetNamespace(); s != tc.want {
			t.Errorf("Write(%s in %q/%q) stored in %s, want %s", tc.typ.Kind, tc.partition, tc.namespace, s, tc.want)
		}
	}
	for _, tc := range []struct {
		typ     *pb.Type
		tenancy *pb.Tenancy
		want    int
	}{
		{nodeType, nil, 1}, {nodeType, &pb.Tenancy{Partition: "p", Namespace: "*"}, 2},
		{nodeType, &pb.Tenancy{Partition: "*", Namespace: "*"}, 3},
		{zoneType, &pb.Tenancy{Partition: "*"}, 2}, {zoneType, &pb.Tenancy{Partition: "*", Namespace: "*"}, 2},
		{zoneType, &pb.Tenancy{Partition: "p"}, 1},
		{fsType, nil, 1}, {fsType, &pb.Tenancy{Partition: "*", Namespace: "*"}, 1},
	} {
		out, err := f.List(t.Context(), &pb.ListRequest{Type: tc.typ, Tenancy: tc.tenancy})
		if err != nil || len(out.GetResources()) != tc.want {
			t.Errorf("List(%s in %v) = %v, %v, want %d resources", tc.typ.Kind, tc.tenancy, out, err, tc.want)
		}
	}
}

// TestService_GroupVersion checks that a read as another group version returns
// the stored resource in the error, and that a write changes the group version.
func TestService_GroupVersion(t *testing.T) {
	f := newFixture(t, nil)
	zone := func(typ *pb.Type) *pb.Resource {
		return &pb.Resource{Id: &pb.ID{Type: typ, Name: "z"}, Data: data(t, &pb.Node{Node: "z"})}
	}
	v1 := f.write(zone(zoneType))
	_, err := f.Read(t.Context(), &pb.ReadRequest{Id: zone(zoneV2Type).Id})
	f.check(err, codes.InvalidArgument, resource.ErrGroupVersion, "v1, not v2")
	mismatch, ok := errors.AsType[*resource.GroupVersionError](resource.FromStatus(err))
	if !ok || !proto.Equal(mismatch.Stored, v1) || mismatch.Requested.GetGroupVersion() != "v2" {
		t.Errorf("Read() as v2 = %v, want an error with the stored %v", err, v1)
	}
	_, err = f.Delete(t.Context(), &pb.DeleteRequest{Id: zone(zoneV2Type).Id})
	f.check(err, codes.InvalidArgument, resource.ErrGroupVersion, "v1, not v2")
	v2 := f.write(zone(zoneV2Type))
	if v2.Id.Uid != v1.Id.Uid || v2.Id.Type.GroupVersion != "v2" {
		t.Errorf("Write() as v2 = %v, want group version v2 and the uid of %v", v2, v1)
	}
	_, err = f.Read(t.Context(), &pb.ReadRequest{Id: v1.Id})
	f.check(err, codes.InvalidArgument, resource.ErrGroupVersion, "v2, not v1")
}

// TestService_ConsistencyKeys checks that both metadata keys are read.
func TestService_ConsistencyKeys(t *testing.T) {
	f := newFixture(t, nil)
	for _, key := range []string{resource.ConsistencyKey, resource.ConsulConsistencyKey} {
		if _, err := f.List(metadata.AppendToOutgoingContext(t.Context(), key, "consistent"),
			&pb.ListRequest{Type: nodeType}); err != nil {
			t.Errorf("List() with %s: consistent = %v, want nil", key, err)
		}
		_, err := f.List(metadata.AppendToOutgoingContext(t.Context(), key, "maybe"), &pb.ListRequest{Type: nodeType})
		f.check(err, codes.InvalidArgument, resource.ErrInvalid, key+` "maybe"`)
	}
}
