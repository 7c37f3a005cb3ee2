// SPDX-License-Identifier: MPL-2.0

package memory

import (
	"errors"
	"maps"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"testing"
	"testing/synctest"

	"github.com/wanfed/wanfed/api/pb"
	"github.com/wanfed/wanfed/internal/testutil"
	"github.com/wanfed/wanfed/resource"
)

var testType = &pb.Type{Group: "test", GroupVersion: "v1", Kind: "Thing"}

// thing returns a resource with that name.
func thing(t testing.TB, name string) *pb.Resource {
	t.Helper()
	r, err := resource.NewNamed(testType, name, resource.CheckUTF8Name, &pb.Node{Node: name})
	if err != nil {
		t.Fatal(err)
	}
	return r
}

// put stores a new resource for each name.
func put(t testing.TB, s *Store, names ...string) {
	t.Helper()
	for _, name := range names {
		if _, err := s.Commit(t.Context(), resource.PutOp(thing(t, name), resource.AnyVersion)); err != nil {
			t.Fatal(err)
		}
	}
}

// open opens a watch for all resources of testType.
func open(t testing.TB, s *Store) *watch {
	t.Helper()
	w, err := s.Watch(resource.Query{Type: testType})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(w.Close)
	return w.(*watch)
}

// drain takes events until the watch would wait or ends. It returns the number
// of events.
func drain(t testing.TB, w *watch) (n int, err error) {
	t.Helper()
	for {
		ev, at, err := w.take()
		if err != nil || at != nil {
			return n, err
		}
		if ev != nil {
			n++
		}
	}
}

// TestWatch_Slow checks that a watch that stops reading is cut off at the
// limit.
func TestWatch_Slow(t *testing.T) {
	s := New()
	defer s.Close()
	s.limits.events = 10
	slow, quick := open(t, s), open(t, s)
	drain(t, slow)
	for i := range 100 {
		put(t, s, "n"+strconv.Itoa(i))
		if _, err := drain(t, quick); err != nil {
			t.Fatalf("drain() of the quick watch = %v, want nil", err)
		}
		if n := slow.topic.events; n > 10 {
			t.Fatalf("retained events = %d, want at most 10", n)
		}
	}
	for range 2 {
		if _, err := slow.Next(t.Context()); !errors.Is(err, resource.ErrWatchReset) {
			t.Fatalf("Next() of the slow watch = %v, want ErrWatchReset", err)
		}
	}
	if _, err := drain(t, open(t, s)); err != nil {
		t.Errorf("drain() of a new watch = %v, want nil", err)
	}
}

// TestWatch_HugeCommit checks that a watch without unread events receives a
// commit above the limit.
func TestWatch_HugeCommit(t *testing.T) {
	s := New()
	defer s.Close()
	s.limits.events = 10
	w := open(t, s)
	drain(t, w)
	var ops []*pb.Op
	for i := range 50 {
		ops = append(ops, resource.PutOp(thing(t, "n"+strconv.Itoa(i)), ""))
	}
	if _, err := s.Commit(t.Context(), ops...); err != nil {
		t.Fatal(err)
	}
	if n, err := drain(t, w); n != 50 || err != nil {
		t.Errorf("drain() = %d, %v, want 50, nil", n, err)
	}
}

// TestTopic_ReleasesEvents checks that a topic releases the events that all
// followers have read, and is deleted with its last follower.
func TestTopic_ReleasesEvents(t *testing.T) {
	s := New()
	defer s.Close()
	a, b := open(t, s), open(t, s)
	drain(t, a)
	put(t, s, "x", "y")
	if n, err := drain(t, a); n != 2 || err != nil {
		t.Errorf("drain() = %d, %v, want 2, nil", n, err)
	}
	if a.topic != b.topic || a.topic.events != 2 || s.retained.Load() == 0 {
		t.Errorf("retained for the other watch: %d events of %d bytes, want 2", a.topic.events, s.retained.Load())
	}
	a.Close()
	a.Close()
	b.Close()
	if k := s.types[a.sel.typ]; b.topic.events != 0 || b.topic.bytes != 0 || s.retained.Load() != 0 ||
		len(k.topics) != 0 || len(k.lengths) != 0 {
		t.Errorf("retained without watches: %d events of %d bytes, type %+v, want none", b.topic.events,
			s.retained.Load(), k)
	}
	put(t, s, "z")
	if n, err := drain(t, open(t, s)); n != 4 || err != nil {
		t.Errorf("drain() of a new watch = %d, %v, want 3 upserts and the end of the snapshot", n, err)
	}
}

// TestWatch_SlowBytes checks the limits in bytes of one topic and of all
// topics.
func TestWatch_SlowBytes(t *testing.T) {
	for name, limit := range map[string]func(*limits){
		"topic": func(l *limits) { l.bytes = 40_000 },
		"total": func(l *limits) { l.total = 40_000 },
	} {
		t.Run(name, func(t *testing.T) {
			s := New()
			defer s.Close()
			limit(&s.limits)
			slow := open(t, s)
			drain(t, slow)
			for i := range 20 {
				r := thing(t, "big")
				if err := resource.SetData(r, &pb.Node{Node: strings.Repeat("x", 5000)}); err != nil {
					t.Fatal(err)
				}
				if _, err := s.Commit(t.Context(), resource.PutOp(r, resource.AnyVersion)); err != nil {
					t.Fatal(err)
				}
				// One event counts as twice its 5000 bytes plus eventOverhead.
				if n := s.retained.Load(); n > 40_000+11_000 {
					t.Fatalf("retained bytes after %d writes = %d, want at most the limit and one event", i+1, n)
				}
			}
			if _, err := drain(t, slow); !errors.Is(err, resource.ErrWatchReset) {
				t.Errorf("drain() of the slow watch = %v, want ErrWatchReset", err)
			}
			if n := s.retained.Load(); n != 0 {
				t.Errorf("retained bytes without followers = %d, want 0", n)
			}
		})
	}
}

// TestWait_Selects checks that a write wakes only waits for its name and for
// prefixes of its name.
func TestWait_Selects(t *testing.T) {
	testutil.Bubble(t, func(t *testing.T) {
		s := New()
		put(t, s, "a/b", "a/c", "d")
		woken := make(map[string]bool)
		var mu sync.Mutex
		for _, q := range []resource.Query{
			{Name: "a/b"}, {Name: "a/"}, {Name: "a/b/c"}, {Prefix: "a/"}, {Prefix: "a/b"}, {Prefix: "a/c"},
			{Prefix: "d"}, {},
			{Tenancy: &pb.Tenancy{Namespace: "other"}},
			{Tenancy: &pb.Tenancy{Namespace: resource.Wildcard}, Name: "a/c"},
		} {
			q.Type = testType
			_, index, err := s.List(t.Context(), resource.Strong, q)
			if err != nil {
				t.Fatal(err)
			}
			go func() {
				if s.Wait(t.Context(), q, index) == nil {
					mu.Lock()
					defer mu.Unlock()
					woken[q.Tenancy.GetNamespace()+q.Name+":"+q.Prefix] = true
				}
			}()
		}
		synctest.Wait()
		put(t, s, "a/b")
		synctest.Wait()
		if want := map[string]bool{"a/b:": true, ":a/": true, ":a/b": true, ":": true}; !maps.Equal(woken, want) {
			t.Errorf("woken waits = %v, want %v", woken, want)
		}
		s.Close()
	})
}

// followUntil checks that a new watch of s misses no event. It returns false
// when the watch was reset, and true when stop is closed.
func followUntil(t *testing.T, s *Store, stop <-chan struct{}, yield bool) bool {
	w, err := s.Watch(resource.Query{Type: testType})
	if err != nil {
		t.Errorf("Watch() = %v, want nil", err)
		return true
	}
	defer w.Close()
	last, begun := uint64(0), false
	for {
		ev, at, err := w.(*watch).take()
		if errors.Is(err, resource.ErrWatchReset) {
			return false
		}
		if err != nil {
			t.Errorf("take() = %v, want nil or ErrWatchReset", err)
			return true
		}
		if ev.GetEndOfSnapshot() != nil {
			begun = true
		} else if begun && ev.GetUpsert() != nil { // follows the deletion of the replaced resource
			index := resourceOf(ev).GetModifyIndex()
			if last != 0 && index != last+1 {
				t.Errorf("index of the event after %d = %d, want %d", last, index, last+1)
			}
			last = index
		}
		if yield {
			runtime.Gosched()
		}
		if at != nil {
			select {
			case <-at.ready:
			case <-stop:
				return true
			}
		}
	}
}

// TestWatch_Race checks that watches that begin, lag and end during writes miss
// no event and release all memory.
func TestWatch_Race(t *testing.T) {
	s := New()
	defer s.Close()
	s.limits.events = 8
	var writers, followers sync.WaitGroup
	stop := make(chan struct{})
	for n := range 8 {
		followers.Go(func() {
			for !followUntil(t, s, stop, n%2 == 0) {
			}
		})
	}
	for range 2 {
		writers.Go(func() {
			for range 2000 {
				put(t, s, "x")
			}
		})
	}
	writers.Wait()
	close(stop)
	followers.Wait()
	if n := s.retained.Load(); n != 0 {
		t.Errorf("retained bytes without followers = %d, want 0", n)
	}
}

// TestWait_OtherType checks that Wait and Next do not return after a write of
// another type.
func TestWait_OtherType(t *testing.T) {
	testutil.Bubble(t, func(t *testing.T) {
		s := New()
		w := open(t, s)
		drain(t, w)
		woken := 0
		errc := make(chan error, 2)
		go func() {
			err := s.Wait(t.Context(), resource.Query{Type: testType}, 1)
			woken++
			errc <- err
		}()
		go func() { _, err := w.Next(t.Context()); errc <- err }()
		synctest.Wait()
		other := thing(t, "x")
		other.Id.Type = &pb.Type{Group: "test", GroupVersion: "v1", Kind: "Other"}
		if _, err := s.Commit(t.Context(), resource.PutOp(other, "")); err != nil {
			t.Fatal(err)
		}
		synctest.Wait()
		if woken != 0 || len(errc) != 0 {
			t.Errorf("after a write of another type: %d waits, %d calls returned, want 0", woken, len(errc))
		}
		put(t, s, "x")
		for range 2 {
			if err := <-errc; err != nil {
				t.Errorf("Wait() or Next() = %v, want nil", err)
			}
		}
		s.Close()
	})
}
