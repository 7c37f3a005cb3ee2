// SPDX-License-Identifier: MPL-2.0

package resourcetest

import (
	"errors"
	"slices"
	"strings"

	"google.golang.org/protobuf/proto"

	"github.com/wanfed/wanfed/api/pb"
	"github.com/wanfed/wanfed/resource"
)

// in moves r to a tenancy.
func in(r *pb.Resource, partition, namespace string) *pb.Resource {
	r.Id.Tenancy = &pb.Tenancy{Partition: partition, Namespace: namespace}
	return r
}

// testList checks which resources a List selects by tenancy and prefix, and
// their order.
func testList(e *env) {
	all, index := e.list(resource.Query{Type: e.typ})
	if len(all) != 0 || index != 1 {
		e.Errorf("List() of an unknown type has %d resources, index %d; want 0, 1", len(all), index)
	}
	for _, r := range []*pb.Resource{
		e.fresh("b", ""), e.fresh("a-1", ""), e.fresh("a", ""), e.fresh("a.b", ""),
		in(e.fresh("a", ""), "default", "z"), in(e.fresh("x", ""), "default", "a"),
		in(e.fresh("p", ""), "other", "default"),
	} {
		e.put(r, "")
	}
	other := e.fresh("a", "")
	other.Id.Type = e.newType("ThingX") // has the subtest's type as a prefix
	e.put(other, "")

	any1 := &pb.Tenancy{Partition: resource.Wildcard, Namespace: resource.Wildcard}
	for _, tc := range []struct {
		tenancy *pb.Tenancy
		prefix  string
		want    []string
	}{
		{nil, "", []string{"a", "a-1", "a.b", "b"}},
		{&pb.Tenancy{Partition: "default"}, "", []string{"a", "a-1", "a.b", "b"}},
		{nil, "a", []string{"a", "a-1", "a.b"}},
		{nil, "a.", []string{"a.b"}},
		{nil, "c", nil},
		{&pb.Tenancy{Namespace: "z"}, "", []string{"a"}},
		{&pb.Tenancy{Partition: "default", Namespace: resource.Wildcard}, "",
			[]string{"x", "a", "a-1", "a.b", "b", "a"}},
		{any1, "", []string{"x", "a", "a-1", "a.b", "b", "a", "p"}},
		{any1, "a", []string{"a", "a-1", "a.b", "a"}},
		{&pb.Tenancy{Partition: resource.Wildcard, Namespace: "default"}, "", []string{"a", "a-1", "a.b", "b", "p"}},
	} {
		got, _ := e.list(resource.Query{Type: e.typ, Tenancy: tc.tenancy, Prefix: tc.prefix})
		if !slices.Equal(names(got), tc.want) {
			e.Errorf("List() of tenancy %v, prefix %q = %v, want %v", tc.tenancy, tc.prefix, names(got), tc.want)
		}
	}
}

// testNames checks names of any UTF-8 without NUL. Lists are in the order of
// the names' bytes.
func testNames(e *env) {
	want := []string{"\x01", "*", "/", "a", "a\n", "a b", "a/", "a/b", "a/b/c", "a0", "default", "ä", "\U0010ffff",
		strings.Repeat("\U0010ffff", 128)}
	for _, name := range slices.Backward(want) {
		e.put(e.named(name), "")
	}
	other := in(e.named("a/z"), "default", "a")
	e.put(other, "")
	all, _ := e.list(resource.Query{Type: e.typ})
	if !slices.Equal(names(all), want) {
		e.Errorf("List() = %q, want %q", names(all), want)
	}
	for prefix, want := range map[string][]string{
		"a/": {"a/", "a/b", "a/b/c"}, "a/b": {"a/b", "a/b/c"}, "*": {"*"}, "b": nil, "\U0010ffff": want[len(want)-2:],
	} {
		some, _ := e.list(resource.Query{Type: e.typ, Prefix: prefix})
		if !slices.Equal(names(some), want) {
			e.Errorf("List() of prefix %q = %q, want %q", prefix, names(some), want)
		}
	}
	for _, r := range all {
		if got := e.read(&pb.ID{Type: e.typ, Name: r.Id.Name}); e.text(got) != r.Id.Name {
			e.Errorf("data of %s = %q, want its name", resource.IDString(r.Id), e.text(got))
		}
	}
	e.commit(resource.RemoveOp(&pb.ID{Type: e.typ, Name: "*"}, ""),
		resource.RemoveOp(&pb.ID{Type: e.typ, Name: "a/"}, ""))
	if all, _ = e.list(resource.Query{Type: e.typ}); len(all) != len(want)-2 {
		e.Errorf("List() after two deletions = %q, want %d names", names(all), len(want)-2)
	}
}

// testIndex checks that the index of a type is the index of the last write or
// deletion of that type. Writes to other types must not change it.
func testIndex(e *env) {
	index := func() uint64 {
		_, i := e.list(resource.Query{Type: e.typ})
		return i
	}
	r := e.put(e.fresh("a", "1"), "")
	if index() != r.ModifyIndex {
		e.Errorf("index after a write = %d, want %d", index(), r.ModifyIndex)
	}
	e.commit(resource.RemoveOp(r.Id, ""))
	removed := index()
	if removed <= r.ModifyIndex {
		e.Errorf("index after a deletion = %d, want more than %d", removed, r.ModifyIndex)
	}
	other := e.fresh("a", "1")
	other.Id.Type = e.newType("Other")
	e.put(other, "")
	if index() != removed {
		e.Errorf("index after a write of another type = %d, want %d", index(), removed)
	}
	again := e.put(e.fresh("a", "1"), "")
	if again.CreateIndex <= removed || again.Version == r.Version || index() != again.ModifyIndex {
		e.Errorf("second creation has create index %d, version %s, index of the type %d; want an index above %d and "+
			"another version than %s", again.CreateIndex, again.Version, index(), removed, r.Version)
	}
}

// owned returns a new resource of type Child that owner owns.
func (e *env) owned(name string, owner *pb.ID) *pb.Resource {
	r := e.fresh(name, "")
	r.Id.Type = e.newType("Child")
	r.Owner = proto.CloneOf(owner)
	return r
}

func (e *env) ownedBy(owner *pb.ID) []*pb.Resource {
	e.Helper()
	all, err := e.b.ListByOwner(e.ctx, owner)
	if err != nil {
		e.Fatal(err)
	}
	return all
}

// testOwner checks ListByOwner, and that the deletion of an owner deletes its
// owned resources and theirs.
func testOwner(e *env) {
	owner := e.put(e.fresh("o", ""), "")
	a := e.put(e.owned("a", owner.Id), "")
	b := e.put(e.owned("b", owner.Id), "")
	grandchild := e.put(e.owned("c", a.Id), "")
	bystander := e.put(e.fresh("o2", ""), "")

	e.list(resource.Query{Type: a.Id.Type})
	e.same(e.ownedBy(owner.Id), []*pb.Resource{a, b})
	unknown := proto.CloneOf(owner.Id)
	unknown.Uid = resource.NewUID()
	if got, err := e.b.ListByOwner(e.ctx, unknown); err != nil || len(got) != 0 {
		e.Errorf("ListByOwner() of an unknown uid = %v, %v, want nothing", got, err)
	}
	if _, err := e.b.ListByOwner(e.ctx, &pb.ID{Type: e.typ, Name: "o"}); !errors.Is(err, resource.ErrInvalid) {
		e.Errorf("ListByOwner() without a uid = %v, want ErrInvalid", err)
	}
	e.refused(resource.ErrNotFound, resource.PutOp(e.owned("d", unknown), ""))

	_, before := e.list(resource.Query{Type: a.Id.Type})
	e.commit(resource.RemoveOp(owner.Id, ""))
	for _, r := range []*pb.Resource{owner, a, b, grandchild} {
		e.missing(r.Id)
	}
	e.read(bystander.Id)
	if _, after := e.list(resource.Query{Type: a.Id.Type}); after <= before {
		e.Errorf("index of the owned type after their deletion = %d, want more than %d", after, before)
	}
	e.refused(resource.ErrNotFound, resource.PutOp(e.owned("d", owner.Id), ""))
}

// testOwnerReplaced checks that a write with another uid deletes the stored
// resource and the resources that it owns.
func testOwnerReplaced(e *env) {
	owner := e.put(e.fresh("o", "1"), "")
	child := e.put(e.owned("a", owner.Id), "")
	next := e.put(e.fresh("o", "2"), resource.AnyVersion)
	if next.CreateIndex <= owner.CreateIndex {
		e.Errorf("create index of the new uid = %d, want more than %d", next.CreateIndex, owner.CreateIndex)
	}
	e.missing(child.Id)
	// Two resources that own each other are deleted together.
	x := e.put(e.owned("x", next.Id), "")
	y := e.put(e.owned("y", x.Id), "")
	rep := proto.CloneOf(x)
	rep.Owner, rep.PrimaryModifyIndex = y.Id, 1
	e.commit(resource.ReplicaOp(rep))
	e.commit(resource.RemoveReplicaOp(x.Id))
	e.missing(x.Id)
	e.missing(y.Id)
}

// primary returns a resource of a primary, with the version and the indexes of
// another store.
func (e *env) primary(name, text string, index uint64) *pb.Resource {
	r := e.fresh(name, text)
	r.Version, r.CreateIndex, r.ModifyIndex, r.PrimaryModifyIndex = "1000000", 1000000, 1000000, index
	r.Metadata = map[string]string{"k": "v"}
	r.Status = map[string]*pb.Status{"primary": {}}
	return r
}

// testReplica checks which fields a replica takes from the primary, and which
// from the local store.
func testReplica(e *env) {
	given := e.primary("a", "1", 40)
	got := e.commit(resource.ReplicaOp(given))[0]
	want := proto.CloneOf(given)
	want.Version, want.CreateIndex, want.ModifyIndex, want.Status = got.Version, got.ModifyIndex, got.ModifyIndex, nil
	e.same([]*pb.Resource{got}, []*pb.Resource{want})
	if got.ModifyIndex >= 1000000 {
		e.Errorf("modify index of the replica = %d, the primary's; want one of this store", got.ModifyIndex)
	}

	// The local status stays, and the primary's is ignored.
	withStatus := proto.CloneOf(got)
	withStatus.Status = map[string]*pb.Status{"local": {ObservedGeneration: got.Generation}}
	local := e.put(withStatus, got.Version)
	if local.PrimaryModifyIndex != 40 {
		e.Errorf("primary modify index after a write of a local status = %d, want 40", local.PrimaryModifyIndex)
	}
	same := e.commit(resource.ReplicaOp(given))[0]
	e.same([]*pb.Resource{same, e.read(given.Id)}, []*pb.Resource{local, local})

	newer := e.changed(given, "2")
	newer.PrimaryModifyIndex = 50
	got = e.commit(resource.ReplicaOp(newer))[0]
	if e.text(got) != "2" || got.Generation != newer.Generation || got.PrimaryModifyIndex != 50 ||
		got.Status["local"] == nil || got.CreateIndex != local.CreateIndex || got.ModifyIndex <= local.ModifyIndex {
		e.Errorf("replica after a change in the primary = %v, want data 2, primary modify index 50 and the local status",
			got)
	}
	for what, change := range map[string]func(r *pb.Resource){
		"metadata":      func(r *pb.Resource) { r.Metadata["k"] = "w" },
		"primary index": func(r *pb.Resource) { r.PrimaryModifyIndex++ },
		"generation":    func(r *pb.Resource) { r.Generation = resource.NewGeneration() },
	} {
		r := proto.CloneOf(newer)
		change(r)
		if next := e.commit(resource.ReplicaOp(r))[0]; next.Version == got.Version {
			e.Errorf("version after a Replica with another %s = %s, want another version", what, next.Version)
		}
	}
}

// testReplicaReplaced checks the replica of a resource that the primary has
// deleted and created again: the old replica, its status and its owned resource
// are deleted.
func testReplicaReplaced(e *env) {
	old := e.commit(resource.ReplicaOp(e.primary("a", "1", 40)))[0]
	child := e.put(e.owned("c", old.Id), "")
	withStatus := proto.CloneOf(old)
	withStatus.Status = map[string]*pb.Status{"local": {}}
	e.put(withStatus, old.Version)

	got := e.commit(resource.ReplicaOp(e.primary("a", "1", 60)))[0] // another uid
	if got.Id.Uid == old.Id.Uid || len(got.Status) != 0 || got.CreateIndex <= old.CreateIndex {
		e.Errorf("replica of a resource that was created again = %v, want another uid, no status and a create index "+
			"above %d", got, old.CreateIndex)
	}
	e.missing(old.Id)
	e.missing(child.Id)
}
