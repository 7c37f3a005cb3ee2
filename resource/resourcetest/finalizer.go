// SPDX-License-Identifier: MPL-2.0

package resourcetest

import (
	"slices"
	"strings"
	"time"

	"google.golang.org/protobuf/proto"

	"github.com/wanfed/wanfed/api/pb"
	"github.com/wanfed/wanfed/resource"
)

// AddFinalizer adds a name without spaces to the finalizers of r.
func AddFinalizer(r *pb.Resource, name string) {
	if r.Metadata == nil {
		r.Metadata = make(map[string]string)
	}
	r.Metadata[resource.FinalizersKey] = strings.Join(append(resource.Finalizers(r), name), " ")
}

// RemoveFinalizer removes a name from the finalizers of r.
func RemoveFinalizer(r *pb.Resource, name string) {
	rest := slices.DeleteFunc(resource.Finalizers(r), func(f string) bool { return f == name })
	if r.Metadata[resource.FinalizersKey] = strings.Join(rest, " "); len(rest) == 0 {
		delete(r.Metadata, resource.FinalizersKey)
	}
}

// held returns a new resource with finalizers.
func (e *env) held(name string, finalizers ...string) *pb.Resource {
	r := e.fresh(name, "1")
	for _, f := range finalizers {
		AddFinalizer(r, f)
	}
	return r
}

// released returns a copy of r without a finalizer.
func released(r *pb.Resource, finalizer string) *pb.Resource {
	c := proto.CloneOf(r)
	RemoveFinalizer(c, finalizer)
	return c
}

// testFinalizers checks that a resource with finalizers is deleted when the
// last finalizer is removed, and that its owned resource stays until then.
func testFinalizers(e *env) {
	r := e.put(e.held("a", "x", "y"), "")
	child := e.put(e.owned("c", r.Id), "")
	w := e.watch(resource.Query{Type: e.typ})
	e.refused(resource.ErrConflict, resource.RemoveOp(r.Id, "0"))
	before := time.Now().Add(-time.Second) // the timestamp has whole seconds
	e.commit(resource.RemoveOp(r.Id, r.Version))
	marked := e.read(r.Id)
	since, ok := resource.Terminating(marked)
	if !ok || since.Before(before.Truncate(time.Second)) || since.After(time.Now()) ||
		marked.Generation != r.Generation || marked.Version == r.Version {
		e.Errorf("resource after its deletion was requested = %v, want a deletion timestamp, the same generation and "+
			"another version", marked)
	}
	e.read(child.Id)
	e.commit(resource.RemoveOp(r.Id, "")) // a second request changes nothing
	if got := e.read(r.Id); got.Version != marked.Version {
		e.Errorf("second Remove wrote version %s after %s, want no change", got.Version, marked.Version)
	}

	// Remove one finalizer, write a status, remove the other finalizer.
	half := e.put(released(marked, "x"), marked.Version)
	if f := resource.Finalizers(half); len(f) != 1 || f[0] != "y" {
		e.Errorf("finalizers after the removal of x = %v, want [y]", f)
	}
	withStatus := proto.CloneOf(half)
	withStatus.Status = map[string]*pb.Status{"c": {ObservedGeneration: half.Generation}}
	last := e.put(withStatus, half.Version)
	out := e.commit(resource.PutOp(released(last, "y"), last.Version))
	if out[0].GetId().GetUid() != r.Id.Uid {
		e.Errorf("Commit() of the write that deletes the resource = %v, want the resource with uid %s", out[0], r.Id.Uid)
	}
	e.missing(r.Id)
	e.missing(child.Id)
	e.expect(w, "+a=1", ".", "+a=1", "+a=1", "+a=1", "-a")
	e.commit(resource.RemoveOp(r.Id, ""))

	// Without a deletion timestamp, the last finalizer is ordinary metadata.
	free := e.put(e.held("b", "x"), "")
	free = e.put(released(free, "x"), free.Version)
	e.commit(resource.RemoveOp(free.Id, ""))
	e.missing(free.Id)
}

// testFinalizersForbid checks the writes that a deletion timestamp or
// finalizers forbid.
func testFinalizersForbid(e *env) {
	r := e.fresh("n", "1")
	r.Metadata = map[string]string{resource.DeletionKey: "2026-01-02T03:04:05Z"}
	e.refused(resource.ErrInvalid, resource.PutOp(r, "")) // only a deletion sets the timestamp
	live := e.put(e.held("l", "x"), "")
	e.refused(resource.ErrInvalid, resource.PutOp(resource.MarkTerminating(live, time.Now()), live.Version))
	// A write with another uid would delete the stored resource, whose
	// finalizer forbids that.
	e.refused(resource.ErrUIDMismatch, resource.PutOp(e.fresh("l", "2"), resource.AnyVersion))

	a := e.held("a", "x", "y")
	a.Metadata["k"] = "v"
	a = e.put(a, "")
	e.commit(resource.RemoveOp(a.Id, ""))
	a = e.read(a.Id)
	for what, change := range map[string]func(r *pb.Resource){
		"data":                       func(r *pb.Resource) { r.Data = e.changed(r, "2").Data },
		"generation":                 func(r *pb.Resource) { r.Generation = resource.NewGeneration() },
		"metadata":                   func(r *pb.Resource) { r.Metadata["k"] = "w" },
		"no metadata":                func(r *pb.Resource) { delete(r.Metadata, "k") },
		"a finalizer":                func(r *pb.Resource) { AddFinalizer(r, "z") },
		"no deletion timestamp":      func(r *pb.Resource) { delete(r.Metadata, resource.DeletionKey) },
		"another deletion timestamp": func(r *pb.Resource) { r.Metadata[resource.DeletionKey] = "2026-01-02T03:04:05Z" },
		"group version":              func(r *pb.Resource) { r.Id.Type.GroupVersion = "v2" },
		"owner":                      func(r *pb.Resource) { r.Owner = live.Id },
	} {
		changed := proto.CloneOf(a)
		change(changed)
		for _, expect := range []string{a.Version, resource.AnyVersion} {
			if _, err := e.b.Commit(e.ctx, resource.PutOp(changed, expect)); err == nil {
				e.Errorf("Commit() that changes the %s of a terminating resource = nil, want an error", what)
			}
		}
		e.refused(resource.ErrTerminating, resource.PutOp(changed, a.Version))
	}
}

// testFinalizersOfOwned checks that finalizers of an owned resource prevent its
// deletion.
func testFinalizersOfOwned(e *env) {
	owner := e.put(e.fresh("o", ""), "")
	free := e.put(e.owned("a", owner.Id), "")
	kept := e.owned("b", owner.Id)
	AddFinalizer(kept, "x")
	kept = e.put(kept, "")
	below := e.put(e.owned("c", kept.Id), "")
	e.commit(resource.RemoveOp(owner.Id, ""))
	e.missing(owner.Id)
	e.missing(free.Id)
	marked := e.read(kept.Id)
	if _, ok := resource.Terminating(marked); !ok {
		e.Errorf("owned resource with a finalizer = %v, want a deletion timestamp", marked)
	}
	e.same(e.ownedBy(owner.Id), []*pb.Resource{marked})
	e.read(below.Id)
	e.put(released(marked, "x"), marked.Version)
	e.missing(kept.Id)
	e.missing(below.Id)
}

// testOwnerOfReplica checks that the removal of a replica deletes the other
// resources that it owns, but no replicas: the primary decides about those.
func testOwnerOfReplica(e *env) {
	owner := e.commit(resource.ReplicaOp(e.primary("owner", "1", 40)))[0]
	child := e.primary("child", "1", 41)
	child.Owner = owner.Id
	e.commit(resource.ReplicaOp(child))
	own := e.put(e.owned("own", owner.Id), "")
	e.commit(resource.RemoveReplicaOp(owner.Id))
	e.missing(owner.Id)
	e.missing(own.Id)
	e.read(child.Id)
	e.commit(resource.RemoveReplicaOp(child.Id))
	e.missing(child.Id)
}

// testFinalizersOfReplica checks that only the primary enforces the finalizers
// of a replica.
func testFinalizersOfReplica(e *env) {
	r := e.primary("a", "1", 40)
	AddFinalizer(r, "x")
	e.commit(resource.ReplicaOp(r))
	marked := resource.MarkTerminating(r, time.Now())
	marked.PrimaryModifyIndex = 50
	stored := e.commit(resource.ReplicaOp(marked))[0]
	if _, ok := resource.Terminating(stored); !ok {
		e.Errorf("replica = %v, want a deletion timestamp", stored)
	}
	withStatus := proto.CloneOf(stored)
	withStatus.Status = map[string]*pb.Status{"local": {}}
	e.put(withStatus, stored.Version)
	e.commit(resource.RemoveReplicaOp(r.Id))
	e.missing(r.Id)
}
