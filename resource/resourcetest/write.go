// SPDX-License-Identifier: MPL-2.0

package resourcetest

import (
	"context"
	"errors"
	"strconv"
	"sync"

	"google.golang.org/protobuf/proto"

	"github.com/wanfed/wanfed/api/pb"
	"github.com/wanfed/wanfed/resource"
)

// testCreate checks the fields of a new resource, and the ids that find it.
func testCreate(e *env) {
	given := e.fresh("a", "1")
	given.Metadata = map[string]string{"k": "v"}
	given.Status = map[string]*pb.Status{"c": {ObservedGeneration: given.Generation}}
	e.missing(given.Id)
	got := e.put(given, "")
	if got.CreateIndex < 2 || got.ModifyIndex != got.CreateIndex ||
		got.Version != strconv.FormatUint(got.ModifyIndex, 10) {
		e.Errorf("new resource has create index %d, modify index %d, version %q; want one number, at least 2",
			got.CreateIndex, got.ModifyIndex, got.Version)
	}
	want := proto.CloneOf(given)
	want.Version, want.CreateIndex, want.ModifyIndex = got.Version, got.CreateIndex, got.ModifyIndex
	e.same([]*pb.Resource{got}, []*pb.Resource{want})
	e.same([]*pb.Resource{e.read(given.Id)}, []*pb.Resource{want})

	byName := &pb.ID{Type: e.typ, Name: "a"} // no uid, no tenancy
	e.same([]*pb.Resource{e.read(byName)}, []*pb.Resource{want})
	e.missing(&pb.ID{Type: e.typ, Name: "a", Uid: resource.NewUID()})
	e.missing(&pb.ID{Type: e.typ, Name: "a", Tenancy: &pb.Tenancy{Namespace: "other"}})
	e.missing(&pb.ID{Type: e.newType("Other"), Name: "a"})
}

// testCompareAndSwap checks that a Put fails unless the stored resource has the
// expected version and uid.
func testCompareAndSwap(e *env) {
	first := e.put(e.fresh("a", "1"), "")
	e.refused(resource.ErrConflict, resource.PutOp(e.fresh("a", "2"), ""))
	e.refused(resource.ErrConflict, resource.PutOp(e.changed(first, "2"), "0"))
	e.refused(resource.ErrConflict, resource.PutOp(e.fresh("b", "2"), first.Version))
	other := e.changed(first, "2")
	other.Id.Uid = resource.NewUID()
	e.refused(resource.ErrUIDMismatch, resource.PutOp(other, first.Version))

	second := e.put(e.changed(first, "2"), first.Version)
	if second.Version == first.Version || second.ModifyIndex <= first.ModifyIndex ||
		second.CreateIndex != first.CreateIndex {
		e.Errorf("second write = %v, want another version, a higher modify index and the create index of %v", second,
			first)
	}
	e.refused(resource.ErrConflict, resource.PutOp(e.changed(first, "3"), first.Version))

	third := e.put(e.changed(second, "3"), resource.AnyVersion)
	if e.text(e.read(first.Id)) != "3" || third.Version == second.Version {
		e.Errorf("resource after a Put with AnyVersion = %v, want data 3 and another version than %s", e.read(first.Id),
			second.Version)
	}
	e.put(e.fresh("b", "1"), resource.AnyVersion) // creates a resource
}

// testConcurrentWriters checks that concurrent compare-and-swaps lose no
// update.
func testConcurrentWriters(e *env) {
	const writers, each = 4, 10
	id := e.put(e.fresh("n", "0"), "").Id
	var wg sync.WaitGroup
	for range writers {
		wg.Go(func() {
			for done := 0; done < each; {
				r, err := e.b.Read(e.ctx, resource.Strong, id)
				if err != nil {
					e.Error(err)
					return
				}
				n, _ := strconv.Atoi(e.text(r))
				_, err = e.b.Commit(e.ctx, resource.PutOp(e.changed(r, strconv.Itoa(n+1)), r.Version))
				switch {
				case err == nil:
					done++
				case !errors.Is(err, resource.ErrConflict):
					e.Error(err)
					return
				}
			}
		})
	}
	wg.Wait()
	if got := e.text(e.read(id)); got != strconv.Itoa(writers*each) {
		e.Errorf("counter after increments by %d writers = %s, want %d", writers, got, writers*each)
	}
}

// testInvalidOps checks that an invalid op makes its whole batch fail.
func testInvalidOps(e *env) {
	good := e.fresh("a", "1")
	with := func(change func(r *pb.Resource)) *pb.Resource {
		r := proto.CloneOf(good)
		change(r)
		return r
	}
	for _, op := range []*pb.Op{
		{},
		resource.PutOp(nil, ""),
		resource.RemoveOp(nil, ""),
		resource.ReplicaOp(nil),
		resource.PutOp(with(func(r *pb.Resource) { r.Id = nil }), ""),
		resource.PutOp(with(func(r *pb.Resource) { r.Id.Uid = "" }), ""),
		resource.PutOp(with(func(r *pb.Resource) { r.Id.Name = "" }), ""),
		resource.PutOp(with(func(r *pb.Resource) { r.Id.Name = "a\x00b" }), ""),
		resource.PutOp(with(func(r *pb.Resource) { r.Id.Type = nil }), ""),
		resource.PutOp(with(func(r *pb.Resource) { r.Id.Tenancy = &pb.Tenancy{Namespace: resource.Wildcard} }), ""),
		resource.PutOp(with(func(r *pb.Resource) { r.Owner = &pb.ID{Type: e.typ, Name: "no-uid"} }), ""),
		resource.ReplicaOp(with(func(r *pb.Resource) { r.Id.Uid = "" })),
		resource.OverwriteOp(nil, false),
		resource.OverwriteOp(with(func(r *pb.Resource) { r.Id.Uid = "" }), true),
		resource.ExpectOp(resource.Query{Prefix: "a"}, nil),
		resource.ExpectOp(resource.Query{Type: e.typ, Prefix: "a\x00"}, nil),
		resource.ExpectOp(resource.Query{Type: e.typ, Tenancy: &pb.Tenancy{Namespace: resource.Wildcard}}, nil),
	} {
		e.refused(resource.ErrInvalid, resource.PutOp(good, ""), op)
	}
	if _, _, err := e.b.List(e.ctx, resource.Eventual, resource.Query{}); !errors.Is(err, resource.ErrInvalid) {
		e.Errorf("List() without a type = %v, want ErrInvalid", err)
	}
	if w, err := e.b.Watch(resource.Query{}); !errors.Is(err, resource.ErrInvalid) {
		e.Errorf("Watch() without a type = %v, %v; want ErrInvalid", w, err)
	}
}

// testBatch checks that a batch of ops is applied in order as a whole, or not
// at all. It also compares Query.MaxBytes with the size of the batch.
func testBatch(e *env) {
	a, b, c := e.fresh("a", "1"), e.fresh("b", "1"), e.fresh("c", "1")
	out := e.commit(resource.PutOp(a, ""), resource.PutOp(b, ""), resource.PutOp(c, ""))
	size := 0
	for _, r := range out {
		size += proto.Size(r)
	}
	if all, _ := e.list(resource.Query{Type: e.typ, MaxBytes: size}); len(all) != len(out) {
		e.Errorf("List() with MaxBytes %d, its size, has %d resources, want %d", size, len(all), len(out))
	}
	if _, _, err := e.b.List(e.ctx, resource.Strong,
		resource.Query{Type: e.typ, MaxBytes: 1}); !errors.Is(err, resource.ErrTooLarge) {
		e.Errorf("List() with MaxBytes 1 = %v, want ErrTooLarge", err)
	}
	if out[0].Version != out[1].Version || out[1].Version != out[2].Version {
		e.Errorf("versions of one batch = %s, %s, %s; want equal ones", out[0].Version, out[1].Version, out[2].Version)
	}
	e.refused(resource.ErrConflict,
		resource.PutOp(e.changed(out[0], "2"), out[0].Version),
		resource.RemoveOp(b.Id, ""),
		resource.PutOp(e.changed(out[2], "2"), "0")) // conflicts; the first two have no effect

	out = e.commit(
		resource.PutOp(e.changed(out[0], "2"), out[0].Version),
		resource.RemoveOp(b.Id, out[1].Version),
		resource.PutOp(e.fresh("d", "1"), ""),
		resource.PutOp(e.changed(out[0], "3"), resource.AnyVersion)) // an op sees the effect of earlier ops
	if out[1] != nil {
		e.Errorf("result of a Remove = %v, want nil", out[1])
	}
	all, _ := e.list(resource.Query{Type: e.typ})
	if got := names(all); len(got) != 3 || got[0] != "a" || got[1] != "c" || got[2] != "d" || e.text(all[0]) != "3" {
		e.Errorf("resources after the batch = %v, data of a = %s; want [a c d] and 3", got, e.text(all[0]))
	}
	if len(e.commit()) != 0 {
		e.Error("Commit() of no ops returned results")
	}
}

// testRemove checks that a Remove deletes only the resource with the given uid
// and version, and changes nothing if there is none.
func testRemove(e *env) {
	r := e.put(e.fresh("a", "1"), "")
	e.refused(resource.ErrConflict, resource.RemoveOp(r.Id, "0"))

	byName := &pb.ID{Type: e.typ, Name: "a"}
	other := proto.CloneOf(r.Id)
	other.Uid = resource.NewUID()
	_, index := e.list(resource.Query{Type: e.typ})
	e.commit(resource.RemoveOp(other, "")) // no resource has that uid
	e.commit(resource.RemoveOp(&pb.ID{Type: e.typ, Name: "b"}, r.Version))
	e.read(r.Id)
	if _, now := e.list(resource.Query{Type: e.typ}); now != index {
		e.Errorf("index after a Remove of a missing resource = %d, want %d", now, index)
	}
	e.commit(resource.RemoveOp(byName, r.Version))
	e.missing(byName)
	e.commit(resource.RemoveOp(byName, ""), resource.RemoveOp(byName, resource.AnyVersion))

	again := e.put(e.fresh("a", "1"), "")
	e.missing(r.Id) // the name is stored again, with another uid
	e.commit(resource.RemoveOp(r.Id, ""))
	e.read(again.Id)
	e.commit(resource.RemoveOp(byName, resource.AnyVersion))
	e.missing(byName)
}

// testEndedContext checks that calls with an ended context have no effect.
func testEndedContext(e *env) {
	r := e.put(e.fresh("a", "1"), "")
	ctx, cancel := context.WithCancel(e.ctx)
	cancel()
	if _, err := e.b.Commit(ctx, resource.PutOp(e.changed(r, "2"), r.Version)); !errors.Is(err, context.Canceled) ||
		errors.Is(err, resource.ErrUnknownOutcome) {
		e.Errorf("Commit() = %v, want only the context's error", err)
	}
	if _, err := e.b.Read(ctx, resource.Strong, r.Id); !errors.Is(err, context.Canceled) {
		e.Errorf("Read() with a canceled context = %v, want %v", err, context.Canceled)
	}
	if _, _, err := e.b.List(ctx, resource.Strong, resource.Query{Type: e.typ}); !errors.Is(err, context.Canceled) {
		e.Errorf("List() with a canceled context = %v, want %v", err, context.Canceled)
	}
	if got := e.read(r.Id); got.Version != r.Version {
		e.Errorf("Commit() with a canceled context wrote version %s", got.Version)
	}
}

// testImmutable checks that a backend keeps no reference to its arguments, and
// that later commits do not change resources that it returned before.
func testImmutable(e *env) {
	given := e.fresh("a", "1")
	given.Metadata = map[string]string{"k": "v"}
	asGiven := proto.CloneOf(given)
	first := e.put(given, "")
	if !proto.Equal(given, asGiven) {
		e.Errorf("Commit() changed its argument to %v", given)
	}
	given.Metadata["k"] = "changed"
	given.Id.Name = "changed"
	given.Data.Value = []byte("changed")
	if got := e.read(asGiven.Id); got.Metadata["k"] != "v" || e.text(got) != "1" {
		e.Errorf("stored resource changed with the argument: %v", got)
	}

	byRead := e.read(asGiven.Id)
	all, _ := e.list(resource.Query{Type: e.typ})
	before := proto.CloneOf(first)
	rep := e.changed(first, "3")
	rep.PrimaryModifyIndex = 7
	e.put(e.changed(first, "2"), first.Version)
	e.commit(resource.ReplicaOp(rep))
	e.commit(resource.RemoveOp(first.Id, ""))
	e.same([]*pb.Resource{first, byRead, all[0]}, []*pb.Resource{before, before, before})
}
