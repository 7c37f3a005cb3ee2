// SPDX-License-Identifier: MPL-2.0

package memory

import (
	"errors"
	"runtime"
	"strconv"
	"testing"
	"time"
	"weak"

	"github.com/wanfed/wanfed/api/pb"
	"github.com/wanfed/wanfed/internal/testutil"
	"github.com/wanfed/wanfed/resource"
)

var otherType = &pb.Type{Group: "test", GroupVersion: "v1", Kind: "Other"}

// changeOther makes n commits that no watch of testType follows.
func changeOther(t *testing.T, s *Store, n int) {
	t.Helper()
	r, err := resource.New(otherType, "x", &pb.Node{})
	if err != nil {
		t.Fatal(err)
	}
	for range n {
		if _, err := s.Commit(t.Context(), resource.PutOp(r, resource.AnyVersion)); err != nil {
			t.Fatal(err)
		}
	}
}

// next reads one event.
func next(t *testing.T, w *watch) {
	t.Helper()
	if _, err := w.Next(t.Context()); err != nil {
		t.Errorf("Next() = %v, want an event", err)
	}
}

func hasSnapshot(w *watch) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.snapshot != nil
}

// newStallStore returns a store of 100 resources. A watch that stops reading
// its snapshot ends after more than limit changes.
func newStallStore(t *testing.T, limit int) *Store {
	t.Helper()
	s := New()
	t.Cleanup(func() { s.Close() })
	s.limits.events = limit
	for n := range 100 {
		put(t, s, "n"+strconv.Itoa(n))
	}
	return s
}

// TestWatch_StalledSnapshot checks that a watch that stops reading its snapshot
// is cut off after many changes. The watch then releases its memory, even if
// Next is not called again. A watch that continues to read is not cut off.
func TestWatch_StalledSnapshot(t *testing.T) {
	testutil.Bubble(t, func(t *testing.T) {
		const limit = 20
		s := newStallStore(t, limit)
		replaced, err := s.Read(t.Context(), resource.Eventual, resource.ID(testType, "n50"))
		if err != nil {
			t.Fatal(err)
		}
		old := weak.Make(replaced)
		replaced = nil
		stalled, reading := open(t, s), open(t, s)
		put(t, s, "n50") // now only the snapshots refer to the old resource
		next(t, stalled)
		next(t, reading)
		changeOther(t, s, limit)
		time.Sleep(stallTimeout + time.Second)
		if !hasSnapshot(stalled) || !hasSnapshot(reading) {
			t.Errorf("within stallTimeout: stalled watch has a snapshot: %t, reading watch: %t, want true, true",
				hasSnapshot(stalled), hasSnapshot(reading))
		}
		next(t, reading)
		changeOther(t, s, limit+1)
		time.Sleep(stallTimeout)
		if hasSnapshot(stalled) || !hasSnapshot(reading) {
			t.Errorf("after stallTimeout: stalled watch has a snapshot: %t, reading watch: %t, want false, true",
				hasSnapshot(stalled), hasSnapshot(reading))
		}
		if _, err := stalled.Next(t.Context()); !errors.Is(err, resource.ErrWatchReset) {
			t.Errorf("Next() of the stalled watch = %v, want ErrWatchReset", err)
		}
		// The watch has read 2 of 100 resources. The rest of the snapshot and
		// its end follow, and then the replacement of n50: a delete and an
		// upsert.
		if n, err := drain(t, reading); n != 98+1+2 || err != nil {
			t.Errorf("drain() of the reading watch = %d, %v, want 101, nil", n, err)
		}
		runtime.GC()
		if got := old.Value(); got != nil {
			t.Errorf("replaced resource = %v, want nil after garbage collection", got)
		}
		runtime.KeepAlive(stalled)
	})
}

// TestWatch_StalledWithoutChanges checks that time alone does not cut off a
// watch.
func TestWatch_StalledWithoutChanges(t *testing.T) {
	testutil.Bubble(t, func(t *testing.T) {
		const limit = 20
		s := newStallStore(t, limit)
		w := open(t, s)
		time.Sleep(time.Hour)
		changeOther(t, s, limit)
		time.Sleep(time.Hour)
		if n, err := drain(t, w); n != 101 || err != nil {
			t.Errorf("drain() = %d, %v, want 101, nil", n, err)
		}
	})
}
