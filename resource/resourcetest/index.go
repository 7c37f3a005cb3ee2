// SPDX-License-Identifier: MPL-2.0

package resourcetest

import (
	"context"
	"errors"
	"fmt"

	"github.com/wanfed/wanfed/api/pb"
	"github.com/wanfed/wanfed/resource"
)

// queries of some names, prefixes and tenancies, as testIndexOfQuery and testWaitSelects ask them, and whether they select a/b.
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

// testIndexOfQuery: the index of a query is that of the last write to what it selects, deletions included, and falls never.
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
				e.Errorf("%s at %d: the index of %v is %d, after %d", what, index, q, now, last[q])
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
		e.Errorf("deleted: the index is %d, after %d", index, r.ModifyIndex)
	}
	check("deleted", index)
	e.put(e.named("c"), "")
	if _, now := e.list(resource.Query{Type: e.typ, Name: "a/b"}); now != index {
		e.Errorf("another name's write moved the index from %d to %d", index, now)
	}
	next := e.target.Restart(e.T)
	e.b, e.target = next.Backend, next
	if _, now := e.list(resource.Query{Type: e.typ, Name: "a/b"}); now != index {
		e.Errorf("a restart moved the index from %d to %d", index, now)
	}
	r = e.put(e.named("a/b"), "")
	if _, now := e.list(resource.Query{Type: e.typ, Name: "a/b"}); now != r.ModifyIndex {
		e.Errorf("created again at %d: the index is %d", r.ModifyIndex, now)
	}
	if _, _, err := e.b.List(e.ctx, resource.Strong, resource.Query{Type: e.typ, Name: "a", Prefix: "a"}); !errors.Is(err, resource.ErrInvalid) {
		e.Errorf("name and prefix: %v, want ErrInvalid", err)
	}
}

// testWaitSelects: a wait ends with a write to what its query selects, also one that came before it, and with no other.
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
				e.Errorf("Wait for %v ended with another name's write: %v", q, err)
			}
			continue
		}
		if err := <-errc; err != nil {
			e.Errorf("Wait for %v: %v", q, err)
		}
		for _, after := range []uint64{0, index, r.ModifyIndex} { // the deletion was last
			if err := e.b.Wait(ctx, *q, after); err != nil {
				e.Error(fmt.Errorf("Wait for %v above %d: %w", q, after, err))
			}
		}
		cancel()
	}
}
