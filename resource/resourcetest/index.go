// SPDX-License-Identifier: MPL-2.0

package resourcetest

import (
	"context"
	"errors"
	"fmt"

	"github.com/wanfed/wanfed/api/pb"
	"github.com/wanfed/wanfed/resource"
)

// queries returns queries by name, by prefix and by tenancy. The value is true
// if the query selects the resource a/b.
func (e *env) queries() map[*resource.Query]bool {
	every := &pb.Tenancy{Partition: resource.Wildcard, Namespace: resource.Wildcard}
	all := map[*resource.Query]bool{
		{Name: "a/b"}: true, {Prefix: "a/b"}: true, {Prefix: "a"}: true, {}: true, {Tenancy: every}: true,
		{Tenancy: every, Name: "a/b"}: true, {Tenancy: every, Prefix: "a/"}: true,
		{Name: "a"}: false, {Name: "a/bc"}: false, {Prefix: "a/bc"}: false, {Prefix: "b"}: false,
		{Tenancy: &pb.Tenancy{Namespace: "n"}}: false, {Tenancy: every, Name: "a"}: false,
	}
	for q := range all {
		q.Type = &pb.Type{Group: e.typ.Group, Kind: e.typ.Kind}
	}
	return all
}

// named returns a new resource with a name that resource.New would refuse, such
// as "a/b". Its data is the name.
func (e *env) named(name string) *pb.Resource {
	r := e.fresh("x", name)
	r.Id.Name = name
	return r
}

// testIndexOfQuery checks that the index of a query is the index of the last
// write or deletion of a selected resource, and never falls.
func testIndexOfQuery(e *env) {
	queries := e.queries()
	for _, name := range []string{"a", "a/bc", "b"} {
		e.put(e.named(name), "")
	}
	e.put(in(e.named("a/bc"), "default", "n"), "")
	last := map[*resource.Query]uint64{}
	check := func(what string, index uint64) {
		e.Helper()
		for q, selects := range queries {
			_, now := e.list(*q)
			if selects && now != index && index != 0 || !selects && last[q] != 0 && now != last[q] {
				e.Errorf("index of %v after a/b was %s at %d = %d, before %d; want a change: %v", q, what, index, now,
					last[q], selects)
			}
			last[q] = now
		}
	}
	check("not yet created", 0)
	r := e.put(e.named("a/b"), "")
	check("created", r.ModifyIndex)
	r = e.put(e.changed(r, "2"), r.Version)
	check("changed", r.ModifyIndex)
	e.commit(resource.RemoveOp(r.Id, ""))
	_, index := e.list(resource.Query{Type: e.typ, Name: "a/b"})
	if index <= r.ModifyIndex {
		e.Errorf("index after a deletion = %d, want more than %d", index, r.ModifyIndex)
	}
	check("deleted", index)
	e.put(e.named("c"), "")
	if _, now := e.list(resource.Query{Type: e.typ, Name: "a/b"}); now != index {
		e.Errorf("index after a write of another name = %d, want %d", now, index)
	}
	next := e.target.Restart(e.T)
	e.b, e.target = next.Backend, next
	if _, now := e.list(resource.Query{Type: e.typ, Name: "a/b"}); now != index {
		e.Errorf("index after a restart = %d, want %d", now, index)
	}
	r = e.put(e.named("a/b"), "")
	if _, now := e.list(resource.Query{Type: e.typ, Name: "a/b"}); now != r.ModifyIndex {
		e.Errorf("index after a creation = %d, want %d", now, r.ModifyIndex)
	}
	if _, _, err := e.b.List(e.ctx, resource.Strong,
		resource.Query{Type: e.typ, Name: "a", Prefix: "a"}); !errors.Is(err, resource.ErrInvalid) {
		e.Errorf("List() with name and prefix = %v, want ErrInvalid", err)
	}
}

// testWaitSelects checks that a Wait ends with a write that its query selects,
// even if the write was committed before the Wait began. A write that the query
// does not select must not end the Wait.
func testWaitSelects(e *env) {
	for q, selects := range e.queries() {
		r := e.put(e.named("a/b"), resource.AnyVersion)
		_, index := e.list(*q)
		ctx, cancel := context.WithCancel(e.ctx)
		errc := make(chan error, 1)
		go func() { errc <- e.b.Wait(ctx, *q, index) }()
		r = e.put(e.changed(r, "2"), r.Version)
		e.commit(resource.RemoveOp(r.Id, ""))
		if !selects {
			cancel()
			if err := <-errc; !errors.Is(err, context.Canceled) {
				e.Errorf("Wait(%v) after a write of another name = %v, want %v", q, err, context.Canceled)
			}
			continue
		}
		if err := <-errc; err != nil {
			e.Errorf("Wait(%v) = %v, want nil", q, err)
		}
		for _, after := range []uint64{0, index, r.ModifyIndex} { // the deletion was last
			if err := e.b.Wait(ctx, *q, after); err != nil {
				e.Error(fmt.Errorf("Wait(%v) above %d = %w", q, after, err))
			}
		}
		cancel()
	}
}
