// SPDX-License-Identifier: MPL-2.0

package resourcetest

import (
	"errors"
	"slices"

	"google.golang.org/protobuf/proto"

	"github.com/wanfed/wanfed/api/pb"
	"github.com/wanfed/wanfed/resource"
)

// as returns a copy of r as another version of its type.
func as(r *pb.Resource, version string) *pb.Resource {
	c := proto.CloneOf(r)
	c.Id.Type.GroupVersion = version
	return c
}

// testGroupVersion checks that a resource is stored as one of its group
// versions, which share names.
func testGroupVersion(e *env) {
	v1 := e.put(e.fresh("a", "1"), "")
	v2 := as(v1, "v2")
	old, new1, every := e.watch(resource.Query{Type: e.typ}), e.watch(resource.Query{Type: v2.Id.Type}),
		e.watch(resource.Query{Type: as(v1, "").Id.Type})

	for _, c := range []resource.Consistency{resource.Strong, resource.Eventual} {
		_, err := e.b.Read(e.ctx, c, v2.Id)
		var mismatch *resource.GroupVersionError
		if !errors.As(err, &mismatch) || !errors.Is(err, resource.ErrGroupVersion) ||
			!proto.Equal(mismatch.Stored, v1) || mismatch.Requested.GetGroupVersion() != "v2" {
			e.Errorf("Read() as v2 = %v with %v, want a GroupVersionError with %v", err, mismatch, v1)
		}
	}
	other := as(v1, "v2")
	other.Id.Uid = resource.NewUID()
	e.missing(other.Id)                                                              // another uid
	e.refused(resource.ErrConflict, resource.PutOp(as(e.fresh("a", "2"), "v2"), "")) // the name is taken
	e.refused(resource.ErrGroupVersion, resource.RemoveOp(&pb.ID{Type: v2.Id.Type, Name: "a"}, ""))
	if all, index := e.list(resource.Query{Type: v2.Id.Type}); len(all) != 0 || index != v1.ModifyIndex {
		e.Errorf("List() as v2 = %v at %d, want none at %d", names(all), index, v1.ModifyIndex)
	}

	stored := e.put(v2, v1.Version)
	if stored.Id.Uid != v1.Id.Uid || stored.CreateIndex != v1.CreateIndex || stored.Version == v1.Version {
		e.Errorf("resource written as v2 = %v, want the uid and create index of %v, and another version", stored, v1)
	}
	e.same([]*pb.Resource{e.read(v2.Id)}, []*pb.Resource{stored})
	if _, err := e.b.Read(e.ctx, resource.Strong, v1.Id); !errors.Is(err, resource.ErrGroupVersion) {
		e.Errorf("Read() as v1 = %v, want ErrGroupVersion", err)
	}
	e.expect(old, "+a=1", ".", "-a")
	e.expect(new1, ".", "+a=1")
	e.expect(every, "+a=1", ".", "-a", "+a=1")
	e.commit(resource.RemoveOp(v1.Id, "")) // by uid, in any group version
	e.missing(v2.Id)
	e.expect(new1, "-a")
}

// testTenancy checks that a resource keeps its tenancy, even without a
// namespace.
func testTenancy(e *env) {
	cluster := in(e.fresh("a", "1"), "", "")
	partition := in(e.fresh("b", "1"), "p", "")
	for _, r := range []*pb.Resource{cluster, partition} {
		got := e.put(r, "")
		if !proto.Equal(got.Id, r.Id) || !proto.Equal(e.read(r.Id).Id, r.Id) {
			e.Errorf("id of the stored resource = %v, want %v", got.Id, r.Id)
		}
	}
	for _, tc := range []struct {
		tenancy *pb.Tenancy
		want    []string
	}{
		{nil, []string{"a"}},
		{&pb.Tenancy{}, []string{"a"}},
		{&pb.Tenancy{Partition: "p"}, []string{"b"}},
		{&pb.Tenancy{Partition: resource.Wildcard}, []string{"a", "b"}},
		{&pb.Tenancy{Namespace: resource.Wildcard}, []string{"a"}},
	} {
		if got, _ := e.list(resource.Query{Type: e.typ, Tenancy: tc.tenancy}); !slices.Equal(names(got), tc.want) {
			e.Errorf("List() of tenancy %v = %v, want %v", tc.tenancy, names(got), tc.want)
		}
	}
}

// testStatus checks that a write of a status changes the version and keeps the
// generation.
func testStatus(e *env) {
	r := e.put(e.fresh("a", "1"), "")
	with := proto.CloneOf(r)
	with.Status = map[string]*pb.Status{"c": {ObservedGeneration: r.Generation, Conditions: []*pb.Condition{{
		Type: "Ready", State: pb.Condition_STATE_TRUE, Resource: &pb.Reference{Type: e.typ, Name: "b", Section: "s"},
	}}}}
	got := e.put(with, r.Version)
	if got.Generation != r.Generation || got.Version == r.Version || !proto.Equal(got.Status["c"], with.Status["c"]) {
		e.Errorf("resource with a new status = %v, want the generation of %v and another version", got, r)
	}
	e.refused(resource.ErrConflict, resource.PutOp(with, r.Version))
}
