// SPDX-License-Identifier: MPL-2.0

package resourcetest

import (
	"context"
	"errors"
	"fmt"

	"github.com/wanfed/wanfed/api/pb"
	"github.com/wanfed/wanfed/resource"
)

// queries are of names, prefixes and tenancies. The value is whether a query
// selects a/b.
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
				e.Errorf("after %s at %d: index of %v = %d, was %d", what, index, q, now, last[q])
			}
			last[q] = now
		}
	}
	check("before", 0)
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
		e.Errorf("write of another name moved the index from %d to %d", index, now)
	}
	next := e.target.Restart(e.T)
	e.b, e.target = next.Backend, next
	if _, now := e.list(resource.Query{Type: e.typ, Name: "a/b"}); now != index {
		e.Errorf("restart moved the index from %d to %d", index, now)
	}
	r = e.put(e.named("a/b"), "")
	if _, now := e.list(resource.Query{Type: e.typ, Name: "a/b"}); now != r.ModifyIndex {
		e.Errorf("index after a creation at %d = %d", r.ModifyIndex, now)
	}
	if _, _, err := e.b.List(e.ctx, resource.Strong,
		resource.Query{Type: e.typ, Name: "a", Prefix: "a"}); !errors.Is(err, resource.ErrInvalid) {
		e.Errorf("List() with name and prefix = %v, want ErrInvalid", err)
	}
}

// testWaitSelects checks that a Wait ends with a write that its query selects,
// even if the write was earlier than the Wait. No other write must end the
// Wait.
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
				e.Errorf("Wait(%v) ended with the write of another name: %v", q, err)
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
