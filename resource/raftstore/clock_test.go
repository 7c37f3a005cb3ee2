// SPDX-License-Identifier: MPL-2.0

package raftstore

import (
	"errors"
	"strconv"
	"testing"
	"time"

	"github.com/wanfed/wanfed/api/pb"
	"github.com/wanfed/wanfed/internal/testutil"
	"github.com/wanfed/wanfed/resource"
	"github.com/wanfed/wanfed/resource/resourcetest"
)

// clockTest opens one data directory in several sessions, with different
// clocks.
type clockTest struct {
	dir          string
	kept, marked *pb.Resource // resources as the last session wrote them
	manifest     Manifest     // snapshot of the first session
	data         []byte
	version      uint64 // highest version so far
	index        uint64 // highest index so far
}

// TestClockSetBack checks that the clock does not change the stored data. It
// writes with the real clock, then with a clock in the year 2000, then with the
// real clock again. Fake time begins in 2000. With fake time the network is in
// memory, but the disk is real.
func TestClockSetBack(t *testing.T) {
	if now := time.Now(); now.Year() < 2020 {
		t.Fatalf("time.Now() = %v, want a time after 2020", now)
	}
	c := &clockTest{dir: t.TempDir()}
	t.Run("first session", func(t *testing.T) { c.session(t, loopback(t), c.writeFirst) })
	t.Run("clock set back", func(t *testing.T) {
		testutil.Bubble(t, func(t *testing.T) { c.session(t, pipes(), c.writeIn2000) })
	})
	t.Run("real clock", func(t *testing.T) {
		c.session(t, loopback(t), func(t *testing.T, s *Store) {
			if got := textOf(t, s, resource.Strong, "new"); got != "long ago" {
				t.Errorf("Read(new) = %q, want \"long ago\"", got)
			}
			c.change(t, s, "today again")
		})
	})
	t.Run("restore with clock set back", func(t *testing.T) {
		testutil.Bubble(t, func(t *testing.T) { c.session(t, pipes(), c.restoreIn2000) })
	})
	t.Run("restore with real clock", func(t *testing.T) {
		c.session(t, loopback(t), func(t *testing.T, s *Store) {
			c.change(t, s, "in the end")
			mustRestore(t, s, c.manifest, c.data)
			c.checkIncrease(t, mustRead(t, s, c.kept.Id))
		})
	})
}

func mustRead(t *testing.T, s *Store, id *pb.ID) *pb.Resource {
	t.Helper()
	r, err := s.Read(t.Context(), resource.Strong, id)
	if err != nil {
		t.Fatal(err)
	}
	return r
}

// session opens the store, checks the data of the last session, calls f, and
// closes the store.
func (c *clockTest) session(t *testing.T, nw *network, f func(t *testing.T, s *Store)) {
	t.Helper()
	s, err := Open(nw.config(t, "a", c.dir))
	if err != nil {
		t.Fatal(err)
	}
	if err := s.Bootstrap([]string{"a"}); err != nil && !errors.Is(err, ErrHasState) {
		t.Fatal(err)
	}
	awaitLeader(t, s)
	if c.kept != nil {
		for _, want := range []*pb.Resource{c.kept, c.marked} {
			got := mustRead(t, s, want.Id)
			if got.Version != want.Version || got.Id.Uid != want.Id.Uid || got.Generation != want.Generation {
				t.Errorf("Read(%s) = %v, want %v", want.Id.Name, got, want)
			}
		}
		if got := textOf(t, s, resource.Strong, "gone"); got != "" {
			t.Errorf("Read(gone) = %q, want none: the resource was deleted", got)
		}
	}
	f(t, s)
	if err := s.Close(); err != nil {
		t.Errorf("Close() = %v, want nil", err)
	}
}

// checkIncrease checks that the version and the index of r are above all
// earlier ones, and returns r.
func (c *clockTest) checkIncrease(t *testing.T, r *pb.Resource) *pb.Resource {
	t.Helper()
	version, err := strconv.ParseUint(r.Version, 10, 64)
	if err != nil || version <= c.version || r.ModifyIndex <= c.index {
		t.Errorf("%s has version %s and index %d (%v), want above %d and %d",
			r.Id.Name, r.Version, r.ModifyIndex, err, c.version, c.index)
	}
	c.version, c.index = version, r.ModifyIndex
	return r
}

// change writes the resource "kept" with a compare-and-swap.
func (c *clockTest) change(t *testing.T, s *Store, text string) {
	t.Helper()
	r := thing(t, "kept", text)
	r.Id.Uid = c.kept.Id.Uid
	if _, err := s.Commit(t.Context(), resource.PutOp(r, "1")); !errors.Is(err, resource.ErrConflict) {
		t.Errorf("Commit() with an old version = %v, want ErrConflict", err)
	}
	out, err := s.Commit(t.Context(), resource.PutOp(r, c.kept.Version))
	if err != nil {
		t.Fatal(err)
	}
	if c.kept = c.checkIncrease(t, out[0]); c.kept.Id.Uid != r.Id.Uid {
		t.Errorf("Commit() stores uid %s, want %s", c.kept.Id.Uid, r.Id.Uid)
	}
}

func (c *clockTest) writeFirst(t *testing.T, s *Store) {
	c.kept = c.checkIncrease(t, put(t, s, "kept", "today"))
	r := thing(t, "marked", "today")
	resourcetest.AddFinalizer(r, "x")
	out, err := s.Commit(t.Context(), resource.PutOp(r, ""))
	if err != nil {
		t.Fatal(err)
	}
	c.marked = c.checkIncrease(t, out[0])
	gone := c.checkIncrease(t, put(t, s, "gone", "today"))
	if _, err := s.Commit(t.Context(), resource.RemoveOp(gone.Id, gone.Version)); err != nil {
		t.Fatal(err)
	}
	c.manifest, c.data = saveData(t, s)
	mustSnapshot(t, s)
}

func (c *clockTest) writeIn2000(t *testing.T, s *Store) {
	if year := time.Now().Year(); year != 2000 {
		t.Fatalf("year = %d, want 2000", year)
	}
	c.change(t, s, "long ago")
	c.checkIncrease(t, put(t, s, "new", "long ago"))
	if _, err := s.Commit(t.Context(), resource.RemoveOp(c.marked.Id, "")); err != nil {
		t.Fatal(err)
	}
	c.marked = mustRead(t, s, c.marked.Id)
	if at, ok := resource.Terminating(c.checkIncrease(t, c.marked)); !ok || at.Year() != 2000 {
		t.Errorf("Terminating() = %v, %v, want the year 2000 and true", at, ok)
	}
	mustSnapshot(t, s) // has an older date than the snapshot of the first session
}

// restoreIn2000 restores the snapshot of the first session. The index of the
// restore comes from the clock, because a time in 2000 is above the index.
func (c *clockTest) restoreIn2000(t *testing.T, s *Store) {
	mustRestore(t, s, c.manifest, c.data)
	c.kept = c.checkIncrease(t, mustRead(t, s, c.kept.Id))
	for name, want := range map[string]string{"kept": "today", "new": ""} {
		if got := textOf(t, s, resource.Strong, name); got != want {
			t.Errorf("Read(%s) after the restore = %q, want %q", name, got, want)
		}
	}
	c.marked = mustRead(t, s, c.marked.Id)
}
