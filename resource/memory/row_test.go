// SPDX-License-Identifier: MPL-2.0

package memory

import (
	"bytes"
	"fmt"
	"runtime"
	"strings"
	"sync"
	"testing"

	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/anypb"

	"github.com/wanfed/wanfed/api/pb"
	"github.com/wanfed/wanfed/resource"
)

// stored returns resources of all forms.
func stored(t testing.TB) map[string]*pb.Resource {
	t.Helper()
	plain := func() *pb.Resource {
		r := thing(t, "plain")
		r.Id.Uid, r.Generation, r.Version, r.CreateIndex, r.ModifyIndex = resource.NewUID(), resource.NewGeneration(), "7", 5, 7
		return r
	}
	all := map[string]*pb.Resource{"plain": plain()}
	with := func(name string, change func(r *pb.Resource)) {
		r := plain()
		change(r)
		all[name] = r
	}
	unknown := protowire.AppendVarint(protowire.AppendTag(nil, 999, protowire.VarintType), 1)
	with("no data", func(r *pb.Resource) { r.Data = nil })
	with("empty data", func(r *pb.Resource) { r.Data = &anypb.Any{} })
	with("data without a value", func(r *pb.Resource) { r.Data.Value = nil })
	with("tenancy", func(r *pb.Resource) { r.Id.Tenancy = &pb.Tenancy{Partition: "p", Namespace: "n"} })
	with("half a tenancy", func(r *pb.Resource) { r.Id.Tenancy = &pb.Tenancy{Namespace: "n"} })
	with("no tenancy", func(r *pb.Resource) { r.Id.Tenancy = nil })
	with("own words", func(r *pb.Resource) { r.Id.Uid, r.Generation, r.Version = "u", "g", "v1" })
	with("nothing optional", func(r *pb.Resource) { r.Generation, r.Version = "", "" })
	with("small letters", func(r *pb.Resource) { r.Id.Uid = strings.ToLower(r.Id.Uid) })
	with("above 128 bits", func(r *pb.Resource) { r.Id.Uid = "8" + r.Id.Uid[1:] })
	with("zero uid", func(r *pb.Resource) { r.Id.Uid, r.Generation = strings.Repeat("0", 26), "7"+strings.Repeat("Z", 25) })
	with("replica", func(r *pb.Resource) { r.PrimaryModifyIndex = 1 << 60 })
	with("highest", func(r *pb.Resource) { r.ModifyIndex, r.CreateIndex = 1<<64-1, 1<<64-1 })
	with("owner", func(r *pb.Resource) { r.Owner = &pb.ID{Type: testType, Name: "o", Uid: "o1"} })
	with("metadata", func(r *pb.Resource) { r.Metadata = map[string]string{"a": "b", "": ""} })
	with("status", func(r *pb.Resource) {
		r.Status = map[string]*pb.Status{"x": {ObservedGeneration: "g", Conditions: []*pb.Condition{{Type: "c"}}}}
	})
	with("unknown", func(r *pb.Resource) { r.ProtoReflect().SetUnknown(unknown) })
	with("unknown in id", func(r *pb.Resource) { r.Id.ProtoReflect().SetUnknown(unknown) })
	with("unknown in type", func(r *pb.Resource) { r.Id.Type.ProtoReflect().SetUnknown(unknown) })
	with("unknown in tenancy", func(r *pb.Resource) {
		r.Id.Tenancy = &pb.Tenancy{Partition: "p", Namespace: "n"}
		r.Id.Tenancy.ProtoReflect().SetUnknown(unknown)
	})
	with("unknown in data", func(r *pb.Resource) { r.Data.ProtoReflect().SetUnknown(unknown) })
	with("unknown in owner", func(r *pb.Resource) {
		r.Owner = &pb.ID{Type: testType, Name: "o", Uid: "o1"}
		r.Owner.ProtoReflect().SetUnknown(unknown)
	})
	return all
}

// checkRow compares a row of r with it, in all its forms.
func checkRow(t *testing.T, w row, r *pb.Resource) {
	t.Helper()
	if got := w.resource(); !proto.Equal(got, r) {
		t.Errorf("got  %v\nwant %v", got, r)
	}
	if w.key() != idKey(r.Id) || w.name() != r.Id.Name || w.modifyIndex() != r.ModifyIndex {
		t.Errorf("key %q, name %q, index %d of %v", w.key(), w.name(), w.modifyIndex(), r)
	}
	if r.Owner != nil && !w.owned() {
		t.Errorf("no owner of %v", r)
	}
	wire := new(pb.Resource)
	if err := proto.Unmarshal(w.appendWire(nil), wire); err != nil || !proto.Equal(wire, r) {
		t.Errorf("encoded %v, %v\nwant    %v", wire, err, r)
	}
	moved := proto.CloneOf(r)
	moved.ModifyIndex, moved.Version = 123456, "123456"
	if got := w.at(123456).resource(); !proto.Equal(got, moved) {
		t.Errorf("moved %v\nwant  %v", got, moved)
	}
}

func TestRow(t *testing.T) {
	all := make(commons)
	for name, r := range stored(t) {
		t.Run(name, func(t *testing.T) {
			was := proto.CloneOf(r)
			w := newRow(all, r)
			r.Data.GetValue() // what the row holds is its own
			if r.Data != nil {
				clear(r.Data.Value)
			}
			checkRow(t, w, was)
		})
	}
}

// TestCommons: what has been forgotten is still known to the rows that have it, and no number of tenancies takes memory for ever.
func TestCommons(t *testing.T) {
	all := make(commons)
	first := thing(t, "a")
	w := newRow(all, first)
	for i := range maxCommons + 10 {
		r := thing(t, "a")
		r.Id.Tenancy = &pb.Tenancy{Partition: "p", Namespace: fmt.Sprint("n", i)}
		newRow(all, r)
	}
	if len(all) > maxCommons {
		t.Errorf("%d are remembered", len(all))
	}
	checkRow(t, w, first)
}

// FuzzRow: whatever is restored is what was there, read in the quick way or not.
func FuzzRow(f *testing.F) {
	like, err := proto.Marshal(thing(f, "like"))
	if err != nil {
		f.Fatal(err)
	}
	for _, r := range stored(f) {
		b, err := proto.Marshal(r)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(b)
		f.Add(newRow(make(commons), r).appendWire(nil))
	}
	f.Fuzz(func(t *testing.T, p []byte) {
		rows := wireRows{all: make(commons)}
		if _, err := rows.row(like); err != nil {
			t.Fatal(err)
		}
		w, err := rows.row(p)
		r := new(pb.Resource)
		bad := proto.Unmarshal(p, r)
		if bad == nil {
			bad = resource.CheckResource(r)
		}
		if (err == nil) != (bad == nil) {
			t.Fatalf("row: %v; as a message: %v", err, bad)
		}
		if err == nil {
			clear(p) // a row has its own
			checkRow(t, w, r)
		}
	})
}

// TestPlain: what this version writes is read in the quick way, and so is what protobuf's own encoding makes of the same.
func TestPlain(t *testing.T) {
	r := stored(t)["plain"]
	own, err := proto.Marshal(r)
	if err != nil {
		t.Fatal(err)
	}
	rows := wireRows{all: make(commons)}
	w, err := rows.row(own)
	if err != nil {
		t.Fatal(err)
	}
	if b := w.appendWire(nil); !bytes.Equal(b, own) {
		t.Errorf("encoded as %q, not %q", b, own)
	}
	if _, ok := rows.plain(own); !ok {
		t.Error("it is not read in the quick way")
	}
}

// TestRowMemory: a record of 256 bytes takes no more than these in memory, with its place in the tree.
func TestRowMemory(t *testing.T) {
	const count, bound = 50_000, 416
	var s *Store
	took := allocated(func() {
		s = New()
		for i := range count {
			data := &anypb.Any{TypeUrl: "type.googleapis.com/wanfed.v1.KVEntry", Value: bytes.Repeat([]byte{1}, 259)}
			r := &pb.Resource{
				Id: &pb.ID{Uid: resource.NewUID(), Type: testType, Name: fmt.Sprintf("m01234567/%08d", i)}, Generation: resource.NewGeneration(), Data: data,
			}
			if _, err := s.state.applyNext([]*pb.Op{resource.PutOp(r, "")}); err != nil {
				t.Fatal(err)
			}
		}
	})
	defer s.Close()
	if each := took / count; each > bound {
		t.Errorf("%d bytes for each of %d records, more than %d", each, count, bound)
	} else {
		t.Logf("%d bytes for each record", each)
	}
}

// TestListShares: those who hold a long list at the same time share its messages, but for what was written between.
func TestListShares(t *testing.T) {
	s := New()
	defer s.Close()
	const count = 10 * maxNode
	for i := range count {
		put(t, s, fmt.Sprintf("n%04d", i))
	}
	list := func() []*pb.Resource {
		all, _, err := s.List(t.Context(), resource.Eventual, resource.Query{Type: testType})
		if err != nil || len(all) != count {
			t.Fatal(len(all), err)
		}
		return all
	}
	same := func(a, b []*pb.Resource) (n int) {
		for i := range a {
			if !proto.Equal(a[i], b[i]) {
				continue
			}
			if a[i] == b[i] {
				n++
			}
		}
		return n
	}
	first := list()
	runtime.GC()
	second := list()
	if n := same(first, second); n != count-shareFrom {
		t.Errorf("%d of %d are shared", n, count)
	}
	if _, err := s.Commit(t.Context(), resource.PutOp(proto.CloneOf(first[count-1]), resource.AnyVersion)); err != nil {
		t.Fatal(err)
	}
	third := list()
	if n := same(second, third); n < count-shareFrom-maxNode || n == count-shareFrom {
		t.Errorf("%d of %d are shared after a write", n, count)
	}
	if third[count-1].ModifyIndex <= first[count-1].ModifyIndex {
		t.Errorf("a list after a write shows what was before: %v", third[count-1])
	}
	runtime.KeepAlive(first)
	var wg sync.WaitGroup
	for range 4 {
		wg.Go(func() {
			for i, r := range list() {
				if r.Id.Name != third[i].Id.Name {
					t.Errorf("%d is %s", i, r.Id.Name)
				}
			}
		})
	}
	wg.Wait()
}

// allocated is what f leaves in memory, in bytes.
func allocated(f func()) uint64 {
	live := func() uint64 {
		var m runtime.MemStats
		runtime.GC()
		runtime.GC()
		runtime.ReadMemStats(&m)
		return m.HeapAlloc
	}
	before := live()
	f()
	return live() - before
}

func BenchmarkRead(b *testing.B) {
	s := New()
	defer s.Close()
	put(b, s, "a")
	id := resource.ID(testType, "a")
	b.ReportAllocs()
	for b.Loop() {
		if _, err := s.Read(b.Context(), resource.Eventual, id); err != nil {
			b.Fatal(err)
		}
	}
}

func BenchmarkList(b *testing.B) {
	s := New()
	defer s.Close()
	for i := range 10000 {
		put(b, s, fmt.Sprint("n", i))
	}
	b.ReportAllocs()
	for b.Loop() {
		if all, _, err := s.List(b.Context(), resource.Eventual, resource.Query{Type: testType}); err != nil || len(all) != 10000 {
			b.Fatal(len(all), err)
		}
	}
}
