// SPDX-License-Identifier: MPL-2.0

package resourcetest

import (
	"cmp"
	"errors"
	"strconv"

	"github.com/wanfed/wanfed/api/pb"
	"github.com/wanfed/wanfed/resource"
)

// populate makes owner own n more resources.
func (e *env) populate(owner *pb.ID, n int) {
	e.Helper()
	var ops []*pb.Op
	for i := range n {
		ops = append(ops, resource.PutOp(e.owned("n"+strconv.Itoa(i), owner), ""))
		if len(ops) == 1000 || i == n-1 {
			e.commit(ops...)
			ops = nil
		}
	}
}

// awaitNone waits until no resource of a type is left, and no tombstone.
func (e *env) awaitNone(typ *pb.Type) {
	e.Helper()
	for _, typ := range []*pb.Type{typ, resource.TombstoneType} {
		for {
			all, index := e.list(resource.Query{Type: typ})
			if len(all) == 0 {
				break
			}
			if err := e.b.Wait(e.ctx, resource.Query{Type: typ}, index); err != nil {
				e.Fatalf("%d of %s left: %v", len(all), resource.TypeString(typ), err)
			}
		}
	}
}

// testCascade checks that the deletion of an owner deletes all resources that
// it owns, even if they are too many for one step. The resources of another
// owner must stay.
func testCascade(e *env) {
	owner := e.put(e.fresh("o", ""), "")
	e.populate(owner.Id, cmp.Or(e.target.Owned, 10_000))
	other := e.put(e.fresh("o2", ""), "")
	bystander := e.put(e.owned("bystander", other.Id), "")
	e.commit(resource.RemoveOp(owner.Id, ""))
	e.missing(owner.Id)
	// No new resource may join the owned ones while some of them still exist.
	e.refused(resource.ErrNotFound, resource.PutOp(e.owned("late", owner.Id), ""))
	e.read(bystander.Id)
	e.commit(resource.RemoveOp(other.Id, ""))
	e.awaitNone(bystander.Id.Type)
}

// testCascadeSteps checks that a cascade has bounded steps, each visible in
// watches.
func testCascadeSteps(e *env) {
	const count = 2 * resource.MaxCascade
	owner := e.put(e.fresh("o", ""), "")
	e.populate(owner.Id, count)
	w := e.watch(resource.Query{Type: e.newType("Child")})
	e.next(w, count+1)
	e.commit(resource.RemoveOp(owner.Id, ""))
	step := map[uint64]int{}
	for range count {
		ev, err := w.Next(e.ctx)
		if err != nil {
			e.Fatal(err)
		}
		step[ev.GetDelete().GetResource().GetModifyIndex()]++
	}
	for index, n := range step {
		if index == 0 || n > resource.MaxCascade {
			e.Errorf("resources deleted at index %d = %d, want at most %d", index, n, resource.MaxCascade)
		}
	}
	e.awaitNone(resource.TombstoneType)
}

// testCascadeDeep checks a cascade over several levels, larger than one step.
func testCascadeDeep(e *env) {
	owner := e.put(e.fresh("o", ""), "")
	child := e.put(e.owned("child", owner.Id), "")
	e.populate(child.Id, resource.MaxCascade+3)
	grandchild := e.put(e.owned("grandchild", child.Id), "")
	held := e.owned("held", grandchild.Id)
	AddFinalizer(held, "x")
	held = e.put(held, "")
	e.commit(resource.RemoveOp(owner.Id, ""))
	e.missing(child.Id)
	e.awaitNone(resource.TombstoneType)
	e.missing(grandchild.Id)
	marked := e.read(held.Id)
	if _, ok := resource.Terminating(marked); !ok {
		e.Errorf("owned resource with a finalizer after the deletion of its owners = %v, want a deletion timestamp", marked)
	}
	e.put(released(marked, "x"), marked.Version)
	e.awaitNone(held.Id.Type)
}

// testMonotonic checks that eventual reads of a server are not older than the
// events that a watch of that server has already received.
func testMonotonic(e *env) {
	owner := e.put(e.fresh("o", ""), "")
	typ := e.newType("Child")
	w := e.watch(resource.Query{Type: typ})
	e.expect(w, ".")
	const writes = 100
	errc := make(chan error, 1)
	go func() {
		r, expect := e.owned("c", owner.Id), ""
		for i := range writes {
			out, err := e.b.Commit(e.ctx, resource.PutOp(e.changed(r, strconv.Itoa(i)), expect))
			if err != nil {
				errc <- err
				return
			}
			expect = out[0].Version
		}
		_, err := e.b.Commit(e.ctx, resource.RemoveOp(r.Id, ""))
		errc <- err
	}()
	for gone := false; !gone; {
		ev, err := w.Next(e.ctx)
		if err != nil {
			e.Fatal(err)
		}
		seen := ev.GetUpsert().GetResource()
		if gone = seen == nil; gone {
			seen = ev.GetDelete().GetResource()
		}
		e.notBefore(seen, owner.Id, gone)
	}
	if err := <-errc; err != nil {
		e.Error(err)
	}
}

// notBefore checks that no eventual read is older than the event with the
// resource seen. If gone, the event was a deletion.
func (e *env) notBefore(seen *pb.Resource, owner *pb.ID, gone bool) {
	e.Helper()
	r, err := e.b.Read(e.ctx, resource.Eventual, seen.Id)
	all, index, lerr := e.b.List(e.ctx, resource.Eventual, resource.Query{Type: seen.Id.Type})
	owned, oerr := e.b.ListByOwner(e.ctx, owner)
	if errors.Is(err, resource.ErrNotFound) {
		if err = nil; len(all) > 0 || len(owned) > 0 {
			e.Errorf("Read() finds nothing, but List() has %v and ListByOwner() %v", names(all), names(owned))
		}
	} else if gone || r.GetModifyIndex() < seen.ModifyIndex {
		e.Errorf("event of index %d, deletion %v; Read() = %v, want nothing older", seen.ModifyIndex, gone, r)
	}
	if err := errors.Join(err, lerr, oerr); err != nil {
		e.Fatal(err)
	}
	if index < seen.ModifyIndex {
		e.Errorf("index of List() after an event of index %d = %d, want nothing older", seen.ModifyIndex, index)
	}
	for _, r := range append(all, owned...) {
		if gone || r.ModifyIndex < seen.ModifyIndex {
			e.Errorf("event of index %d, deletion %v; List() has %v, want nothing older", seen.ModifyIndex, gone, r)
		}
	}
}
