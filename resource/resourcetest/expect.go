// SPDX-License-Identifier: MPL-2.0

package resourcetest

import (
	"strconv"

	"github.com/wanfed/wanfed/api/pb"
	"github.com/wanfed/wanfed/resource"
)

// testExpect checks that an Expect fails if and only if the result of its read
// has changed.
func testExpect(e *env) {
	name := func(s string) resource.Query { return resource.Query{Type: e.typ, Name: s} }
	prefix := func(s string) resource.Query { return resource.Query{Type: e.typ, Prefix: s} }
	mark := 0
	// holds checks whether a batch with the expectation is committed.
	holds := func(when string, want bool, q resource.Query, listed []*pb.Resource) {
		e.Helper()
		mark++
		write := resource.PutOp(e.fresh("mark"+strconv.Itoa(mark), ""), "")
		if !want {
			e.refused(resource.ErrConflict, write, resource.ExpectOp(q, listed))
			return
		}
		out, err := e.b.Commit(e.ctx, resource.ExpectOp(q, listed), write)
		if err != nil || len(out) != 2 || out[0] != nil || out[1] == nil {
			e.Errorf("Commit() with an Expect of name %q, prefix %q when %s = %v, %v; want nil and the stored resource",
				q.Name, q.Prefix, when, out, err)
		}
	}
	queries := []resource.Query{name("a"), name("a.b"), prefix("a"), prefix("a."), prefix("b")}
	lists := make([][]*pb.Resource, len(queries))
	read := func() {
		e.Helper()
		for i, q := range queries {
			lists[i], _ = e.list(q)
		}
	}
	// moved checks for each of queries whether its result has changed since the
	// last read, and then reads all results again.
	moved := func(what string, want ...bool) {
		e.Helper()
		for i, q := range queries {
			holds(what, !want[i], q, lists[i])
		}
		read()
	}
	read()
	moved("nothing is there", false, false, false, false, false)
	ab := e.put(e.fresh("a.b", "1"), "")
	moved("a.b is made", false, true, true, true, false)
	a := e.put(e.fresh("a", "1"), "")
	moved("a is made", true, false, true, false, false)
	e.put(e.changed(ab, "2"), ab.Version)
	moved("a.b is changed", false, true, true, true, false)
	e.commit(resource.RemoveOp(a.Id, ""))
	moved("a is deleted", true, false, true, false, false)
	e.commit(resource.RemoveOp(ab.Id, ""), resource.PutOp(e.fresh("a.c", "1"), ""))
	moved("a.b is deleted and a.c made in one step", false, true, true, true, false)
	e.put(e.fresh("a", "1"), "")
	moved("a is made again", true, false, true, false, false)

	// An Expect sees the ops before it. A batch of Expects moves no index.
	all, index := e.list(prefix("a"))
	e.refused(resource.ErrConflict, resource.RemoveOp(a.Id, ""), resource.PutOp(e.fresh("a.d", ""), ""),
		resource.ExpectOp(prefix("a"), all))
	e.commit(resource.PutOp(e.fresh("x", ""), ""), resource.ExpectOp(prefix("a"), all),
		resource.RemoveOp(resource.ID(e.typ, "x"), ""), resource.ExpectOp(name("x"), nil))
	e.commit(resource.ExpectOp(prefix("a"), all))
	if again, at := e.list(prefix("a")); at != index {
		e.Errorf("index after batches that change nothing = %d, want %d", at, index)
	} else {
		e.same(again, all)
	}
	other := prefix("a")
	other.Tenancy = &pb.Tenancy{Namespace: "other"}
	holds("in another namespace", true, other, nil)
	everything, _ := e.list(prefix(""))
	holds("all was read", true, prefix(""), everything)
	holds("all has one more", false, prefix(""), everything) // the call before has added a resource
}
