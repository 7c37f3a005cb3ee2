// SPDX-License-Identifier: MPL-2.0

package resourcetest

import (
	"errors"

	"google.golang.org/protobuf/proto"

	"github.com/wanfed/wanfed/api/pb"
	"github.com/wanfed/wanfed/resource"
)

// testRestore checks that a restored snapshot replaces the state, ends watches
// and waits, and that no index falls.
func testRestore(e *env) {
	a := e.put(e.fresh("a", "1"), "")
	restore, err := e.target.Snapshot(e.ctx)
	if err != nil {
		e.Fatal(err)
	}
	e.put(e.changed(a, "2"), a.Version)
	b := e.put(e.fresh("b", "1"), "")
	w, idle := e.watch(resource.Query{Type: e.typ}), e.watch(resource.Query{Type: e.newType("Other")})
	e.expect(w, "+a=2", "+b=1", ".")
	e.expect(idle, ".")
	_, index := e.list(resource.Query{Type: e.typ})
	waited := make(chan error, 1)
	go func() { waited <- e.b.Wait(e.ctx, resource.Query{Type: e.typ}, index) }()

	if err := restore(e.ctx); err != nil {
		e.Fatal(err)
	}
	for _, w := range []resource.Watch{w, idle} {
		if ev, err := w.Next(e.ctx); !errors.Is(err, resource.ErrWatchReset) {
			e.Errorf("Next() after a restore = %v, %v, want ErrWatchReset", ev, err)
		}
	}
	if err := <-waited; err != nil {
		e.Errorf("Wait() during a restore = %v, want nil", err)
	}
	got, now := e.list(resource.Query{Type: e.typ})
	if len(got) != 1 || e.text(got[0]) != "1" || got[0].Id.Uid != a.Id.Uid || got[0].Generation != a.Generation ||
		got[0].CreateIndex != a.CreateIndex || now <= index {
		e.Errorf("List() after the restore = %v at index %d, want only a as it was saved, and an index above %d", got, now,
			index)
	}
	e.missing(b.Id)
	e.expect(e.watch(resource.Query{Type: e.typ}), "+a=1", ".")
	e.put(e.changed(got[0], "3"), got[0].Version)
}

// testRestart checks that acknowledged writes survive a restart, and that a
// restart does not stop a cascade.
func testRestart(e *env) {
	kept := e.fresh("kept", "1")
	kept.Status = map[string]*pb.Status{"c": {ObservedGeneration: kept.Generation}}
	AddFinalizer(kept, "x")
	e.put(kept, "")
	e.commit(resource.RemoveOp(kept.Id, ""))
	marked := e.read(kept.Id)
	owner := e.put(e.fresh("o", ""), "")
	e.populate(owner.Id, 2*resource.MaxCascade)
	e.commit(resource.RemoveOp(owner.Id, ""))

	next := e.target.Restart(e.T)
	e.b, e.target = next.Backend, next
	got := e.read(kept.Id)
	e.same([]*pb.Resource{got}, []*pb.Resource{marked})
	e.missing(owner.Id)
	e.awaitNone(e.newType("Child"))
	e.refused(resource.ErrTerminating, resource.PutOp(e.changed(got, "2"), got.Version))
	e.put(released(proto.CloneOf(got), "x"), got.Version)
	e.missing(kept.Id)
}
