// SPDX-License-Identifier: MPL-2.0

package memory

import (
	"bytes"
	"fmt"
	"testing"

	"github.com/wanfed/wanfed/api/pb"
	"github.com/wanfed/wanfed/resource"
)

func (s *Store) indexOf(t testing.TB, q resource.Query) uint64 {
	t.Helper()
	q.Type = testType
	_, index, err := s.List(t.Context(), resource.Strong, q)
	if err != nil {
		t.Fatal(err)
	}
	return index
}

// TestForget: of many deletions the oldest are forgotten together. No index falls for that, and all rise but once.
func TestForget(t *testing.T) {
	s := New()
	defer s.Close()
	put(t, s, "kept", "first")
	del := func(names ...string) {
		t.Helper()
		ops := make([]*pb.Op, len(names))
		for i, name := range names {
			ops[i] = resource.RemoveOp(resource.ID(testType, name), "")
		}
		if _, err := s.Commit(t.Context(), ops...); err != nil {
			t.Fatal(err)
		}
	}
	del("first")
	kept, first := s.indexOf(t, resource.Query{Name: "kept"}), s.indexOf(t, resource.Query{Name: "first"})
	if first <= kept {
		t.Fatalf("deleted at %d, which is not after %d", first, kept)
	}
	moved, last := 0, kept
	for n := 0; n < maxDeletions+1024; n += 512 {
		var names []string
		for i := range 512 {
			names = append(names, fmt.Sprintf("n%d", n+i))
		}
		put(t, s, names...)
		del(names...)
		if now := s.indexOf(t, resource.Query{Name: "kept"}); now != last {
			last = now
			moved++
		}
	}
	if moved != 1 {
		t.Errorf("the index of what did not change moved %d times, want 1", moved)
	}
	if d := s.state.published.Load(); d.deletions.Len() > maxDeletions || d.oldest.Len() != d.deletions.Len() {
		t.Errorf("%d deletions, %d by age, want the same and at most %d", d.deletions.Len(), d.oldest.Len(), maxDeletions)
	}
	if now := s.indexOf(t, resource.Query{Name: "first"}); now < first || now != last {
		t.Errorf("the index of what is forgotten is %d, after %d; the type's least is %d", now, first, last)
	}

	// A server that reads the snapshot has the same indexes.
	restored := NewState()
	defer restored.Close()
	if err := restored.Restore(bytes.NewReader(snapshotOf(t, s))); err != nil {
		t.Fatal(err)
	}
	for _, q := range []resource.Query{{Name: "kept"}, {Name: "first"}, {Prefix: "n1"}, {Name: fmt.Sprintf("n%d", maxDeletions)}} {
		want := s.indexOf(t, q)
		q.Type = testType
		if _, got, err := restored.List(t.Context(), q); err != nil || got != want {
			t.Errorf("%v: index %d, %v; want %d", q, got, err, want)
		}
	}
}

// TestForeignSnapshot: whatever a snapshot of another store says, no index of a query falls, and all who wait ask again.
func TestForeignSnapshot(t *testing.T) {
	other := New()
	defer other.Close()
	put(t, other, "a")
	for range 100 {
		put(t, other, "b")
	}
	s := New()
	defer s.Close()
	for range 10 {
		put(t, s, "a")
	}
	before := s.indexOf(t, resource.Query{Name: "a"})
	if err := s.Restore(bytes.NewReader(snapshotOf(t, other))); err != nil {
		t.Fatal(err)
	}
	if after := s.indexOf(t, resource.Query{Name: "a"}); after <= before {
		t.Errorf("index %d after %d", after, before)
	}
}
