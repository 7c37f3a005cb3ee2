// SPDX-License-Identifier: MPL-2.0

package memory

import (
	"bytes"
	"errors"
	"fmt"
	"runtime"
	"testing"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/anypb"

	"github.com/wanfed/wanfed/api/pb"
	"github.com/wanfed/wanfed/resource"
)

func TestClose(t *testing.T) {
	s := New()
	put(t, s, "x")
	w := open(t, s)
	drain(t, w)
	errc := make(chan error, 2)
	go func() { _, err := w.Next(t.Context()); errc <- err }()
	go func() { errc <- s.Wait(t.Context(), resource.Query{Type: testType}, 100) }()
	s.Close()
	s.Close()
	for range 2 {
		if err := <-errc; !errors.Is(err, resource.ErrClosed) {
			t.Errorf("wait during Close() = %v, want ErrClosed", err)
		}
	}
	_, readErr := s.Read(t.Context(), resource.Strong, &pb.ID{Type: testType, Name: "x"})
	_, _, listErr := s.List(t.Context(), resource.Strong, resource.Query{Type: testType})
	_, commitErr := s.Commit(t.Context(), resource.PutOp(thing(t, "y"), ""))
	_, watchErr := s.Watch(resource.Query{Type: testType})
	_, ownerErr := s.ListByOwner(t.Context(), &pb.ID{Uid: "u"})
	for _, err := range []error{readErr, listErr, commitErr, watchErr, ownerErr,
		s.Wait(t.Context(), resource.Query{Type: testType}, 0)} {
		if !errors.Is(err, resource.ErrClosed) {
			t.Errorf("call after Close() = %v, want ErrClosed", err)
		}
	}
}

// TestApply checks that Apply requires rising indexes, and applies all ops or
// none.
func TestApply(t *testing.T) {
	s := NewState()
	defer s.Close()
	out, err := applyOps(s, 17, []*pb.Op{resource.PutOp(thing(t, "a"), "")})
	if err != nil || out[0].Version != "17" || s.Index() != 17 {
		t.Fatalf("Apply() = %v, %v, index %d, want version and index 17", out, err, s.Index())
	}
	if _, err := applyOps(s, 17, []*pb.Op{resource.PutOp(thing(t, "b"), "")}); err == nil {
		t.Error("second Apply() with the same index = nil, want an error")
	}
	if _, err := applyOps(s, 20, []*pb.Op{resource.RemoveOp(&pb.ID{Type: testType, Name: "c"}, "")}); err != nil ||
		s.Index() != 17 {
		t.Errorf("Apply() of ops without effect = %v, index %d, want nil, index 17", err, s.Index())
	}
	rep := proto.CloneOf(out[0])
	if _, err := applyOps(s, 21, []*pb.Op{resource.ReplicaOp(rep)}); err != nil || s.Index() != 17 {
		t.Errorf("Apply() of a stored replica = %v, index %d, want nil, index 17", err, s.Index())
	}
	if _, err := applyOps(s, 22, []*pb.Op{resource.PutOp(thing(t, "b"), ""),
		resource.PutOp(thing(t, "a"), "")}); !errors.Is(err, resource.ErrConflict) {
		t.Errorf("Apply() of ops with a conflict = %v, want ErrConflict", err)
	}
	if all, index, err := s.List(t.Context(), resource.Query{Type: testType}); err != nil || len(all) != 1 ||
		index != 17 {
		t.Errorf("List() has %d resources, index %d, %v, want 1, index 17", len(all), index, err)
	}
}

func BenchmarkCommit(b *testing.B) {
	for _, watches := range []int{0, 1, 100} {
		b.Run(fmt.Sprintf("watches=%d", watches), func(b *testing.B) {
			s := New()
			defer s.Close()
			for range watches {
				w := open(b, s)
				go func() {
					for {
						if _, err := w.Next(b.Context()); err != nil {
							return
						}
					}
				}()
			}
			r := thing(b, "a")
			b.ResetTimer()
			for range b.N {
				if _, err := s.Commit(b.Context(), resource.PutOp(r, resource.AnyVersion)); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}

// TestState_MemoryPerResource checks the memory of a resource with 256 bytes of
// data, including its entries in the tables.
func TestState_MemoryPerResource(t *testing.T) {
	const count, limit = 50_000, 740
	var s *Store
	total := allocated(func() {
		s = New()
		for i := range count {
			data := &anypb.Any{TypeUrl: "type.googleapis.com/wanfed.v1.KVEntry", Value: bytes.Repeat([]byte{1}, 259)}
			r := &pb.Resource{
				Id:         &pb.ID{Uid: resource.NewUID(), Type: testType, Name: fmt.Sprintf("m01234567/%08d", i)},
				Generation: resource.NewGeneration(), Data: data,
			}
			if _, err := s.Commit(t.Context(), resource.PutOp(r, "")); err != nil {
				t.Fatal(err)
			}
		}
	})
	defer s.Close()
	if each := total / count; each > limit {
		t.Errorf("memory of a resource = %d bytes, want at most %d", each, limit)
	} else {
		t.Logf("memory of a resource = %d bytes", each)
	}
}

// TestList_SharesResources checks that two lists share an unchanged resource.
func TestList_SharesResources(t *testing.T) {
	s := New()
	defer s.Close()
	put(t, s, "a", "b")
	list := func() []*pb.Resource {
		all, _, err := s.List(t.Context(), resource.Eventual, resource.Query{Type: testType})
		if err != nil || len(all) != 2 {
			t.Fatalf("List() = %v, %v, want 2 resources", all, err)
		}
		return all
	}
	before := list()
	put(t, s, "b")
	after := list()
	if before[0] != after[0] {
		t.Errorf("unchanged resource in two lists = %p, %p, want one address", before[0], after[0])
	}
	if after[1].ModifyIndex <= before[1].ModifyIndex {
		t.Errorf("index after a write = %d, want more than %d", after[1].ModifyIndex, before[1].ModifyIndex)
	}
}

// allocated returns the number of bytes that are in use after f but not before.
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
		if all, _, err := s.List(b.Context(), resource.Eventual, resource.Query{Type: testType}); err != nil ||
			len(all) != 10000 {
			b.Fatal(len(all), err)
		}
	}
}
