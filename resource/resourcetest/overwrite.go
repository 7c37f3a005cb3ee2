// SPDX-License-Identifier: MPL-2.0

package resourcetest

import (
	"strconv"
	"sync"

	"google.golang.org/protobuf/proto"

	"github.com/wanfed/wanfed/api/pb"
	"github.com/wanfed/wanfed/resource"
)

// testOverwrite checks that an Overwrite replaces data and metadata, and keeps
// the rest of the stored resource.
func testOverwrite(e *env) {
	over := func(r *pb.Resource, keep bool) *pb.Resource {
		e.Helper()
		return e.commit(resource.OverwriteOp(r, keep))[0]
	}
	owner := e.put(e.fresh("o", "1"), "")
	made := over(e.fresh("a", "1"), false)
	if made.CreateIndex != made.ModifyIndex || e.text(e.read(made.Id)) != "1" {
		e.Errorf("resource that an Overwrite created = %v, want data 1 and equal create and modify indexes", made)
	}
	e.commit(resource.RemoveOp(made.Id, ""))

	first := e.fresh("a", "1")
	first.Owner, first.Metadata = owner.Id, map[string]string{"k": "v"}
	first.Status = map[string]*pb.Status{"c": {ObservedGeneration: first.Generation}}
	first = e.put(first, "")
	given := e.fresh("a", "2") // with a uid, a generation and no status of its own
	given.Metadata = map[string]string{"l": "w"}
	second := over(given, false)
	want := proto.CloneOf(first)
	want.Data, want.Metadata, want.Generation = given.Data, given.Metadata, given.Generation
	want.Version, want.ModifyIndex = second.Version, second.ModifyIndex
	e.same([]*pb.Resource{second, e.read(first.Id)}, []*pb.Resource{want, want})
	if second.Version == first.Version || second.ModifyIndex <= first.ModifyIndex {
		e.Errorf("version = %s, modify index %d, want more than %s, %d", second.Version, second.ModifyIndex,
			first.Version, first.ModifyIndex)
	}
	e.refused(resource.ErrConflict, resource.PutOp(e.changed(first, "3"), first.Version))

	third := over(e.fresh("a", "2"), false)
	if third.Generation != second.Generation || len(third.Metadata) > 0 || third.Version == second.Version {
		e.Errorf("Overwrite of %v with the same data = %v, want the same generation, no metadata and another version",
			second, third)
	}
	// An Overwrite with the same data that keeps the metadata changes nothing.
	e.same([]*pb.Resource{over(e.fresh("a", "2"), true), e.read(first.Id)}, []*pb.Resource{third, third})
	fourth := over(e.fresh("a", "3"), true)
	if fourth.Generation == third.Generation || fourth.Version == third.Version {
		e.Errorf("Overwrite of %v with other data = %v, want another generation and another version", third, fourth)
	}
	if owned, err := e.b.ListByOwner(e.ctx, owner.Id); err != nil || len(owned) != 1 {
		e.Errorf("ListByOwner() after the Overwrites = %v, %v; want the one resource", owned, err)
	}
	next := e.fresh("a", "3")
	next.Id.Type = proto.CloneOf(e.typ)
	next.Id.Type.GroupVersion = "v2"
	if fifth := over(next, true); fifth.Generation == fourth.Generation || fifth.Id.Uid != first.Id.Uid ||
		fifth.Id.Type.GroupVersion != "v2" {
		e.Errorf("Overwrite as group version v2 = %v, want the same uid and another generation", fifth)
	}

	orphan := e.fresh("b", "1")
	orphan.Owner = e.fresh("unknown", "").Id
	e.refused(resource.ErrNotFound, resource.OverwriteOp(orphan, false))
	// An op sees the effect of the ops before it in its batch.
	out := e.commit(resource.OverwriteOp(e.fresh("c", "1"), false), resource.OverwriteOp(e.fresh("c", "2"), false))
	if out[0].Id.Uid != out[1].Id.Uid || e.text(out[1]) != "2" {
		e.Errorf("two Overwrites in a batch = %v, want one uid and data 2", out)
	}
	e.refused(resource.ErrConflict, resource.OverwriteOp(e.fresh("c", "3"), false),
		resource.PutOp(e.fresh("c", "4"), ""))

	held := e.fresh("d", "1")
	held.Metadata = map[string]string{resource.FinalizersKey: "f"}
	held = e.put(held, "")
	e.commit(resource.RemoveOp(held.Id, ""))
	e.refused(resource.ErrTerminating, resource.OverwriteOp(e.fresh("d", "2"), true))
	e.refused(resource.ErrTerminating, resource.OverwriteOp(e.fresh("d", "2"), false))
	marked := e.fresh("c", "5")
	marked.Metadata = map[string]string{resource.DeletionKey: e.read(held.Id).Metadata[resource.DeletionKey]}
	e.refused(resource.ErrInvalid, resource.OverwriteOp(marked, false))
}

// testOverwriteTogether checks that concurrent Overwrites of a resource all
// succeed at the first try.
func testOverwriteTogether(e *env) {
	const writers, each = 8, 10
	var wg sync.WaitGroup
	var mu sync.Mutex
	versions := map[string]string{} // the data by version
	uids := map[string]bool{}
	for w := range writers {
		wg.Go(func() {
			for i := range each {
				r := e.fresh("n", strconv.Itoa(w*each+i))
				out, err := e.b.Commit(e.ctx, resource.OverwriteOp(r, false))
				if err != nil {
					e.Error(err)
					return
				}
				mu.Lock()
				versions[out[0].Version] = e.text(out[0])
				uids[out[0].Id.Uid] = true
				mu.Unlock()
			}
		})
	}
	wg.Wait()
	last := e.read(resource.ID(e.typ, "n"))
	if len(versions) != writers*each || len(uids) != 1 || versions[last.Version] != e.text(last) {
		e.Errorf("%d writes = %d versions, %d uids, last %v; want a version for each write and one uid", writers*each,
			len(versions), len(uids), last)
	}
}
