// SPDX-License-Identifier: MPL-2.0

package raftstore

import (
	"errors"
	"strconv"
	"testing"
	"testing/synctest"
	"time"

	"github.com/wanfed/wanfed/api/pb"
	"github.com/wanfed/wanfed/resource"
)

// TestClockSetBack writes to a store today, then in a process whose clock is in
// the year 2000, then today again. The clock decides nothing about what is
// stored. Fake time begins in 2000. Its network is in memory, and its disk is
// real.
func TestClockSetBack(t *testing.T) {
	dir := t.TempDir()
	if time.Now().Year() < 2020 {
		t.Fatalf("time.Now() = %v, want a later year", time.Now())
	}
	var kept, marked *pb.Resource
	var manifest Manifest
	var data []byte
	version, index := uint64(0), uint64(0)
	increases := func(r *pb.Resource) *pb.Resource { // versions and indexes only go up
		t.Helper()
		v, err := strconv.ParseUint(r.Version, 10, 64)
		if err != nil || v <= version || r.ModifyIndex <= index {
			t.Errorf("%s has version %s and index %d, %v; want above %d and %d",
				r.Id.Name, r.Version, r.ModifyIndex, err, version, index)
		}
		version, index = v, r.ModifyIndex
		return r
	}
	snapshot := func(s *Store) { // of Raft
		t.Helper()
		if err := s.raft.Snapshot().Error(); err != nil {
			t.Error(err)
		}
	}
	// session opens the store, checks what the last session has written, and
	// calls f.
	session := func(t *testing.T, nw *network, name string, f func(s *Store)) {
		t.Helper()
		s, err := Open(nw.config(t, "a", dir))
		if err != nil {
			t.Fatal(err)
		}
		if err := s.Bootstrap([]string{"a"}); err != nil && !errors.Is(err, ErrHasState) {
			t.Fatal(err)
		}
		awaitLeader(t, s)
		if kept != nil {
			for _, want := range []*pb.Resource{kept, marked} {
				got, err := s.Read(t.Context(), resource.Strong, want.Id)
				if err != nil || got.Version != want.Version || got.Id.Uid != want.Id.Uid || got.Generation != want.Generation {
					t.Errorf("Read(%s) = %v, %v, want %v", name, got, err, want)
				}
			}
			if got := textOf(t, s, resource.Strong, "gone"); got != "" {
				t.Errorf("%s: deleted resource = %q, want none", name, got)
			}
		}
		f(s)
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	}
	// change writes a resource with compare-and-swap.
	change := func(t *testing.T, s *Store, text string) {
		t.Helper()
		r := thing(t, "kept", text)
		r.Id.Uid = kept.Id.Uid
		if _, err := s.Commit(t.Context(), resource.PutOp(r, "1")); !errors.Is(err, resource.ErrConflict) {
			t.Errorf("Commit() with an old version = %v, want ErrConflict", err)
		}
		out, err := s.Commit(t.Context(), resource.PutOp(r, kept.Version))
		if err != nil {
			t.Fatal(err)
		}
		if kept = increases(out[0]); kept.Id.Uid != r.Id.Uid {
			t.Errorf("uid = %s, want %s", kept.Id.Uid, r.Id.Uid)
		}
	}

	session(t, loopback(t), "at first", func(s *Store) {
		kept = increases(put(t, s, "kept", "today"))
		r := thing(t, "marked", "today")
		resource.AddFinalizer(r, "x")
		out, err := s.Commit(t.Context(), resource.PutOp(r, ""))
		if err != nil {
			t.Fatal(err)
		}
		marked = increases(out[0])
		gone := increases(put(t, s, "gone", "today"))
		if _, err := s.Commit(t.Context(), resource.RemoveOp(gone.Id, gone.Version)); err != nil {
			t.Fatal(err)
		}
		manifest, data = saveData(t, s)
		snapshot(s)
	})
	synctest.Test(t, func(t *testing.T) {
		if y := time.Now().Year(); y != 2000 {
			t.Fatalf("year = %d, want 2000", y)
		}
		session(t, pipes(), "with the clock set back", func(s *Store) {
			change(t, s, "long ago")
			increases(put(t, s, "new", "long ago"))
			_, err := s.Commit(t.Context(), resource.RemoveOp(marked.Id, ""))
			if err != nil {
				t.Fatal(err)
			}
			if marked, err = s.Read(t.Context(), resource.Strong, marked.Id); err != nil {
				t.Fatal(err)
			}
			if at, ok := resource.Terminating(increases(marked)); !ok || at.Year() != 2000 {
				t.Errorf("Terminating() = %v, %v, want the year 2000", at, ok)
			}
			snapshot(s) // newer than the one of today, in spite of its date
		})
	})
	session(t, loopback(t), "today again", func(s *Store) {
		if got := textOf(t, s, resource.Strong, "new"); got != "long ago" {
			t.Errorf("new = %q", got)
		}
		change(t, s, "today again")
	})
	synctest.Test(t, func(t *testing.T) { // the index of a restore comes from the clock if the clock is ahead
		session(t, pipes(), "before the restore", func(s *Store) {
			mustRestore(t, s, manifest, data)
			r, err := s.Read(t.Context(), resource.Strong, kept.Id)
			if err != nil {
				t.Fatal(err)
			}
			if kept = increases(r); textOf(t, s, resource.Strong, "kept") != "today" ||
				textOf(t, s, resource.Strong, "new") != "" {
				t.Errorf("restored resource = %v", r)
			}
			if marked, err = s.Read(t.Context(), resource.Strong, marked.Id); err != nil {
				t.Fatal(err)
			}
		})
	})
	session(t, loopback(t), "after the restore", func(s *Store) {
		change(t, s, "in the end")
		mustRestore(t, s, manifest, data) // again, with a clock that is ahead
		r, err := s.Read(t.Context(), resource.Strong, kept.Id)
		if err != nil {
			t.Fatal(err)
		}
		increases(r)
	})
}
