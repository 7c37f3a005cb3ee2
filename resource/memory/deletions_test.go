// SPDX-License-Identifier: MPL-2.0

package memory

import (
	"bytes"
	"fmt"
	"testing"

	"github.com/wanfed/wanfed/api/pb"
	"github.com/wanfed/wanfed/resource"
)

// indexOf returns the index of a query.
func (s *Store) indexOf(t testing.TB, q resource.Query) uint64 {
	t.Helper()
	q.Type = testType
	_, index, err := s.List(t.Context(), resource.Strong, q)
	if err != nil {
		t.Fatal(err)
	}
	return index
}

// TestDeletions_DropOldest checks that the oldest deletions are dropped
// together. The index of a query for another name of the type may then rise,
// and never falls.
func TestDeletions_DropOldest(t *testing.T) {
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
		t.Fatalf("index of the deletion = %d, want more than %d", first, kept)
	}
	rises, last := 0, kept // of the index of the unchanged resource
	for n := 0; n < maxDeletions+1024; n += 512 {
		var names []string
		for i := range 512 {
			names = append(names, fmt.Sprintf("n%d", n+i))
		}
		put(t, s, names...)
		del(names...)
		if now := s.indexOf(t, resource.Query{Name: "kept"}); now != last {
			last = now
			rises++
		}
	}
	if rises != 1 {
		t.Errorf("the index of an unchanged resource rose %d times, want 1", rises)
	}
	if d := s.published.Load(); d.deletions.Len() > maxDeletions || d.oldest.Len() != d.deletions.Len() {
		t.Errorf("deletions = %d, by age = %d, want equal numbers of at most %d", d.deletions.Len(), d.oldest.Len(),
			maxDeletions)
	}
	if now := s.indexOf(t, resource.Query{Name: "first"}); now < first || now != last {
		t.Errorf("index of a dropped deletion = %d, was %d, want the floor of the type, %d", now, first, last)
	}

	// A restored snapshot must have the same indexes.
	restored := NewState()
	defer restored.Close()
	if err := restored.Restore(bytes.NewReader(snapshotOf(t, s))); err != nil {
		t.Fatal(err)
	}
	for _, q := range []resource.Query{{Name: "kept"}, {Name: "first"}, {Prefix: "n1"},
		{Name: fmt.Sprintf("n%d", maxDeletions)}} {
		want := s.indexOf(t, q)
		q.Type = testType
		if _, got, err := restored.List(t.Context(), q); err != nil || got != want {
			t.Errorf("List(%v) of the restored state has index %d, %v, want %d", q, got, err, want)
		}
	}
}
