// SPDX-License-Identifier: MPL-2.0

package resourcetest

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"sync"

	"github.com/wanfed/wanfed/api/pb"
	"github.com/wanfed/wanfed/resource"
)

// watch opens a watch whose snapshot contains all writes that were committed
// before the call.
func (e *env) watch(q resource.Query) resource.Watch {
	e.Helper()
	e.list(q)
	w, err := e.b.Watch(q)
	if err != nil {
		e.Fatal(err)
	}
	e.Cleanup(w.Close)
	return w
}

// next takes n events from w. An upsert is "+name=text", a delete is "-name",
// and the end of the snapshot is ".".
func (e *env) next(w resource.Watch, n int) []string {
	e.Helper()
	var got []string
	for range n {
		ev, err := w.Next(e.ctx)
		if err != nil {
			e.Fatalf("Next() after the events %v = %v, want nil", got, err)
		}
		switch {
		case ev.GetUpsert() != nil:
			r := ev.GetUpsert().GetResource()
			got = append(got, fmt.Sprintf("+%s=%s", r.GetId().GetName(), e.text(r)))
		case ev.GetDelete() != nil:
			got = append(got, "-"+ev.GetDelete().GetResource().GetId().GetName())
		case ev.GetEndOfSnapshot() != nil:
			got = append(got, ".")
		}
	}
	return got
}

// expect checks the next events of w, in the form that next returns.
func (e *env) expect(w resource.Watch, want ...string) {
	e.Helper()
	if got := e.next(w, len(want)); !slices.Equal(got, want) {
		e.Errorf("events = %v, want %v", got, want)
	}
}

// testWatch checks the snapshot and the events of watches of a whole type.
func testWatch(e *env) {
	q := resource.Query{Type: e.typ}
	empty := e.watch(q)
	e.expect(empty, ".")

	b := e.put(e.fresh("b", "1"), "")
	a := e.put(e.fresh("a", "1"), "")
	w := e.watch(q)
	b2 := e.put(e.changed(b, "2"), b.Version)
	e.commit(resource.RemoveOp(a.Id, ""), resource.PutOp(e.fresh("c", "1"), ""), resource.RemoveOp(a.Id, ""))
	e.put(e.fresh("b", "3"), resource.AnyVersion) // another uid: the old one is deleted first
	e.expect(w, "+a=1", "+b=1", ".", "+b=2", "-a", "+c=1", "-b", "+b=3")
	e.expect(empty, "+b=1", "+a=1", "+b=2", "-a", "+c=1", "-b", "+b=3")

	// A delete event has the last state of the resource and the deletion's
	// index.
	late := e.watch(q)
	e.expect(late, "+b=3", "+c=1", ".")
	e.commit(resource.RemoveOp(b2.Id, "")) // b2 is deleted already, so there is no event
	last := e.read(&pb.ID{Type: e.typ, Name: "c"})
	e.commit(resource.RemoveOp(last.Id, ""))
	ev, err := late.Next(e.ctx)
	if err != nil {
		e.Fatal(err)
	}
	_, index := e.list(q)
	if d := ev.GetDelete().GetResource(); d.GetVersion() != last.Version || d.GetModifyIndex() != index ||
		d.GetId().GetUid() != last.Id.Uid {
		e.Errorf("event of a deletion = %v, want the last state of %v, with index %d", ev, last, index)
	}
}

// testWatchSelects checks which events watches of a prefix, a namespace, all
// tenancies and another type receive.
func testWatchSelects(e *env) {
	prefix := e.watch(resource.Query{Type: e.typ, Prefix: "x-"})
	namespace := e.watch(resource.Query{Type: e.typ, Tenancy: &pb.Tenancy{Namespace: "n"}})
	every := e.watch(resource.Query{Type: e.typ, Tenancy: &pb.Tenancy{
		Partition: resource.Wildcard, Namespace: resource.Wildcard,
	}})
	children := e.watch(resource.Query{Type: e.newType("Child")})
	for _, w := range []resource.Watch{prefix, namespace, every, children} {
		e.expect(w, ".")
	}
	x := e.put(e.fresh("x-1", ""), "")
	e.put(e.fresh("y-1", ""), "")
	e.put(in(e.fresh("z-1", ""), "default", "n"), "")
	e.put(e.owned("c", x.Id), "")
	e.commit(resource.RemoveOp(x.Id, ""))

	e.expect(prefix, "+x-1=", "-x-1")
	e.expect(namespace, "+z-1=")
	e.expect(every, "+x-1=", "+y-1=", "+z-1=", "-x-1")
	e.expect(children, "+c=", "-c") // deleted with its owner
}

// testWatchEnds checks that Next ends with its context and with Close.
func testWatchEnds(e *env) {
	w := e.watch(resource.Query{Type: e.typ})
	e.expect(w, ".")
	ctx, cancel := context.WithCancel(e.ctx)
	errc := make(chan error, 1)
	go func() { _, err := w.Next(ctx); errc <- err }()
	cancel()
	if err := <-errc; !errors.Is(err, context.Canceled) {
		e.Errorf("Next() = %v, want the context's error", err)
	}
	e.put(e.fresh("a", "1"), "")
	e.expect(w, "+a=1") // the canceled Next has lost no event

	go func() { _, err := w.Next(e.ctx); errc <- err }()
	w.Close()
	if err := <-errc; !errors.Is(err, resource.ErrClosed) {
		e.Errorf("Next() of a closed watch = %v, want ErrClosed", err)
	}
	w.Close()
}

// testWatchConcurrent checks that a watch which begins during writes gets every
// change exactly once.
func testWatchConcurrent(e *env) {
	const writers, each, watches = 4, 25, 8
	var wg sync.WaitGroup
	for n := range writers {
		wg.Go(func() {
			r := e.fresh("w"+strconv.Itoa(n), "1")
			expect := ""
			for i := 1; i <= each; i++ {
				out, err := e.b.Commit(e.ctx, resource.PutOp(e.changed(r, strconv.Itoa(i)), expect))
				if err != nil {
					e.Error(err)
					return
				}
				expect = out[0].Version
			}
		})
	}
	for range watches {
		wg.Go(func() {
			if err := e.countUp(writers, each); err != nil {
				e.Error(err)
			}
		})
	}
	wg.Wait()
}

// countUp follows a watch until all writers have reached last.
func (e *env) countUp(writers, last int) error {
	w, err := e.b.Watch(resource.Query{Type: e.typ})
	if err != nil {
		return err
	}
	defer w.Close()
	c := counter{e: e, writers: writers, last: last, at: map[string]int{}}
	for {
		ev, err := w.Next(e.ctx)
		if err != nil {
			return err
		}
		if done, err := c.count(ev); done || err != nil {
			return err
		}
	}
}

// counter checks the events of one watch. Each writer has one resource, whose
// text counts up to last. After the snapshot no number may be missing.
type counter struct {
	e             *env
	writers, last int
	at            map[string]int // the latest number by resource
	live          bool           // the snapshot has ended
	index         uint64         // of the latest event after the snapshot
	done          int            // writers that have reached last
}

// count checks an event. It reports whether all writers have reached last.
func (c *counter) count(ev *pb.WatchEvent) (done bool, err error) {
	r := ev.GetUpsert().GetResource()
	if r == nil {
		c.live = true
		return c.done == c.writers, nil
	}
	n, err := strconv.Atoi(c.e.text(r))
	if err != nil {
		return false, err
	}
	name := r.GetId().GetName()
	if c.live && (n != c.at[name]+1 || r.GetModifyIndex() < c.index) {
		return false, fmt.Errorf("event of %s = number %d at index %d, want number %d at index %d or later", name, n,
			r.GetModifyIndex(), c.at[name]+1, c.index)
	}
	c.at[name] = n
	if c.live {
		c.index = r.GetModifyIndex()
	}
	if n == c.last {
		c.done++
	}
	return c.live && c.done == c.writers, nil
}

// testWait checks that each kind of write ends a Wait that began before it, and
// that a write of another type does not.
func testWait(e *env) {
	if err := e.b.Wait(e.ctx, resource.Query{Type: e.typ}, 0); err != nil { // every type has an index of at least 1
		e.Error(err)
	}
	r := e.put(e.fresh("a", "1"), "")
	if err := e.b.Wait(e.ctx, resource.Query{Type: e.typ}, r.ModifyIndex-1); err != nil {
		e.Error(err)
	}
	// Each of these writes ends one wait that began before it.
	for _, write := range []*pb.Op{
		resource.PutOp(e.changed(r, "2"), resource.AnyVersion),
		resource.RemoveOp(r.Id, ""),
		resource.PutOp(e.fresh("a", "3"), ""),
	} {
		_, index := e.list(resource.Query{Type: e.typ})
		errc := make(chan error, 1)
		go func() { errc <- e.b.Wait(e.ctx, resource.Query{Type: e.typ}, index) }()
		other := e.fresh("x", "")
		other.Id.Type = e.newType("Other")
		e.put(other, resource.AnyVersion) // must not end the Wait
		e.commit(write)
		if err := <-errc; err != nil {
			e.Error(err)
		}
		if _, now := e.list(resource.Query{Type: e.typ}); now <= index {
			e.Errorf("index after Wait() above %d = %d, want a higher one", index, now)
		}
	}
}

// testWaitEnds checks that Wait ends with its context, and that a Wait whose
// context has ended still compares the index.
func testWaitEnds(e *env) {
	_, index := e.list(resource.Query{Type: e.typ})
	ctx, cancel := context.WithCancel(e.ctx)
	errc := make(chan error, 1)
	go func() { errc <- e.b.Wait(ctx, resource.Query{Type: e.typ}, index) }()
	cancel()
	if err := <-errc; !errors.Is(err, context.Canceled) {
		e.Errorf("Wait() = %v, want the context's error", err)
	}
	// With an ended context, Wait returns nil if the index is above the given
	// one.
	q := resource.Query{Type: e.typ}
	if err := e.b.Wait(ctx, q, index); !errors.Is(err, context.Canceled) {
		e.Errorf("Wait() with a canceled context = %v, want the context's error", err)
	}
	r := e.put(e.fresh("a", "1"), "")
	e.list(q)
	if err := e.b.Wait(ctx, q, r.ModifyIndex-1); err != nil {
		e.Errorf("Wait() with a canceled context, below the index = %v, want nil", err)
	}
	if !resource.Changed(e.b, q, r.ModifyIndex-1) || resource.Changed(e.b, q, r.ModifyIndex) {
		e.Errorf("Changed() below and at index %d = %v, %v; want true, false", r.ModifyIndex,
			resource.Changed(e.b, q, r.ModifyIndex-1), resource.Changed(e.b, q, r.ModifyIndex))
	}
}
