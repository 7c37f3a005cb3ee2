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
	"github.com/wanfed/wanfed/resource"
)

var testType = &pb.Type{Group: "test", GroupVersion: "v1", Kind: "Thing"}

func thing(t testing.TB, name string) *pb.Resource {
	t.Helper()
	r, err := resource.NewNamed(testType, name, resource.CheckUTF8Name, &pb.Node{Node: name})
	if err != nil {
		t.Fatal(err)
	}
	return r
}

func put(t testing.TB, s *Store, names ...string) {
	t.Helper()
	for _, name := range names {
		if _, err := s.Commit(t.Context(), resource.PutOp(thing(t, name), resource.AnyVersion)); err != nil {
			t.Fatal(err)
		}
	}
}

func open(t testing.TB, s *Store) *watch {
	t.Helper()
	w, err := s.Watch(resource.Query{Type: testType})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(w.Close)
	return w.(*watch)
}

// drain takes events until the watch would wait or fails, and returns their
// number.
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

// TestWatch_Slow checks that a watch which stops reading is cut off at the
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
			t.Fatalf("watch that keeps up = %v, want no error", err)
		}
		if n := slow.topic.events; n > 10 {
			t.Fatalf("%d events retained, want at most 10", n)
		}
	}
	for range 2 {
		if _, err := slow.Next(t.Context()); !errors.Is(err, resource.ErrWatchReset) {
			t.Fatalf("Next() of the slow watch = %v, want ErrWatchReset", err)
		}
	}
	if _, err := drain(t, open(t, s)); err != nil {
		t.Errorf("new watch = %v, want no error", err)
	}
}

// TestWatch_HugeCommit checks that a commit above the limit reaches a watch
// that has read everything before.
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
		t.Errorf("watch has %d events, %v, want 50", n, err)
	}
}

// TestTopic_ReleasesEvents checks that a topic releases events that all
// followers have read, and ends with its last follower.
func TestTopic_ReleasesEvents(t *testing.T) {
	s := New()
	defer s.Close()
	a, b := open(t, s), open(t, s)
	drain(t, a)
	put(t, s, "x", "y")
	if n, err := drain(t, a); n != 2 || err != nil {
		t.Errorf("watch has %d events, %v, want 2", n, err)
	}
	if a.topic != b.topic || a.topic.events != 2 || s.retained.Load() == 0 {
		t.Errorf("%d events of %d bytes retained for the other watch, want 2", a.topic.events, s.retained.Load())
	}
	a.Close()
	a.Close()
	b.Close()
	if k := s.types[a.sel.typ]; b.topic.events != 0 || b.topic.bytes != 0 || s.retained.Load() != 0 || len(k.topics) != 0 || len(k.lengths) != 0 {
		t.Errorf("without watches %d events of %d bytes retained, type %+v, want none", b.topic.events, s.retained.Load(), k)
	}
	put(t, s, "z")
	if n, err := drain(t, open(t, s)); n != 4 || err != nil {
		t.Errorf("new watch has %d events, %v, want 3 upserts and end-of-snapshot", n, err)
	}
}

// TestWatch_SlowBytes checks the limits in bytes, of one topic and of all.
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
				if n := s.retained.Load(); n > 40_000+11_000 {
					t.Fatalf("%d bytes retained after %d writes, want at most the limit and one event", n, i+1)
				}
			}
			if _, err := drain(t, slow); !errors.Is(err, resource.ErrWatchReset) {
				t.Errorf("the Next() of the slow watch = %v, want ErrWatchReset", err)
			}
			if n := s.retained.Load(); n != 0 {
				t.Errorf("%d bytes retained without followers, want 0", n)
			}
		})
	}
}

// TestWait_Selects checks that a write wakes only waits for its name and for
// prefixes of it.
func TestWait_Selects(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := New()
		put(t, s, "a/b", "a/c", "d")
		woken := make(map[string]bool)
		var mu sync.Mutex
		for _, q := range []resource.Query{
			{Name: "a/b"}, {Name: "a/"}, {Name: "a/b/c"}, {Prefix: "a/"}, {Prefix: "a/b"}, {Prefix: "a/c"}, {Prefix: "d"}, {},
			{Tenancy: &pb.Tenancy{Namespace: "other"}}, {Tenancy: &pb.Tenancy{Namespace: resource.Wildcard}, Name: "a/c"},
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

// TestWatch_Race checks that watches which begin, lag and end during writes
// miss no event, and release everything.
func TestWatch_Race(t *testing.T) {
	s := New()
	defer s.Close()
	s.limits.events = 8
	var writers, followers sync.WaitGroup
	stop := make(chan struct{})
	for n := range 8 {
		followers.Go(func() {
			for resets := 0; ; {
				w, err := s.Watch(resource.Query{Type: testType})
				if err != nil {
					t.Error(err)
					return
				}
				last, begun := uint64(0), false
				for {
					ev, at, err := w.(*watch).take()
					if errors.Is(err, resource.ErrWatchReset) {
						resets++
						break
					}
					if err != nil {
						t.Error(err)
						return
					}
					if ev == endOfSnapshot {
						begun = true
					} else if begun && ev.GetUpsert() != nil { // each comes with the deletion of the former resource
						index := resourceOf(ev).GetModifyIndex()
						if last != 0 && index != last+1 {
							t.Errorf("event of index %d after %d, want the next index", index, last)
						}
						last = index
					}
					if n%2 == 0 {
						runtime.Gosched()
					}
					if at != nil {
						select {
						case <-at.ready:
						case <-stop:
							w.Close()
							return
						}
					}
				}
				w.Close()
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
		t.Errorf("%d bytes retained without followers, want 0", n)
	}
}

// TestWait_OtherType checks that Wait and Next do not wake before a write to
// their type.
func TestWait_OtherType(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
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
			t.Error("write of another type ended a wait")
		}
		put(t, s, "x")
		for range 2 {
			if err := <-errc; err != nil {
				t.Error(err)
			}
		}
		s.Close()
	})
}
