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

// drain takes events until the watch would wait, and returns how many there were, or its error.
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

// TestSlowWatch: a watch that stops reading keeps no more than the bound alive, and is told so.
func TestSlowWatch(t *testing.T) {
	s := New()
	defer s.Close()
	s.state.limits.events = 10
	slow, quick := open(t, s), open(t, s)
	drain(t, slow)
	for i := range 100 {
		put(t, s, "n"+strconv.Itoa(i))
		if _, err := drain(t, quick); err != nil {
			t.Fatalf("the watch that keeps up: %v", err)
		}
		if n := slow.topic.events; n > 10 {
			t.Fatalf("%d events are kept", n)
		}
	}
	for range 2 {
		if _, err := slow.Next(t.Context()); !errors.Is(err, resource.ErrWatchReset) {
			t.Fatalf("slow watch: %v, want ErrWatchReset", err)
		}
	}
	if _, err := drain(t, open(t, s)); err != nil {
		t.Errorf("a new watch: %v", err)
	}
}

// TestHugeBatch: one commit above the bound reaches every watch that had seen all before it.
func TestHugeBatch(t *testing.T) {
	s := New()
	defer s.Close()
	s.state.limits.events = 10
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
		t.Errorf("%d events, %v", n, err)
	}
}

// TestNothingKept: what all have read is not kept, and a topic that nobody follows is none.
func TestNothingKept(t *testing.T) {
	s := New()
	defer s.Close()
	a, b := open(t, s), open(t, s)
	drain(t, a)
	put(t, s, "x", "y")
	if n, err := drain(t, a); n != 2 || err != nil {
		t.Errorf("%d events, %v", n, err)
	}
	if a.topic != b.topic || a.topic.events != 2 || s.state.retained.Load() == 0 {
		t.Errorf("%d events of %d bytes kept for the watch that lags, want 2", a.topic.events, s.state.retained.Load())
	}
	a.Close()
	a.Close()
	b.Close()
	if k := s.state.types[a.sel.typ]; b.topic.events != 0 || b.topic.bytes != 0 || s.state.retained.Load() != 0 || len(k.topics) != 0 || len(k.lengths) != 0 {
		t.Errorf("without watches %d events of %d bytes are kept, and the type has %+v", b.topic.events, s.state.retained.Load(), k)
	}
	put(t, s, "z")
	if n, err := drain(t, open(t, s)); n != 4 || err != nil {
		t.Errorf("a new watch: %d events, %v; want 3 upserts and end-of-snapshot", n, err)
	}
}

// TestKeptBytes: great resources are kept for who lags only up to the bound in bytes, of a topic and of all.
func TestKeptBytes(t *testing.T) {
	for name, limit := range map[string]func(*limits){
		"topic": func(l *limits) { l.bytes = 40_000 },
		"total": func(l *limits) { l.total = 40_000 },
	} {
		t.Run(name, func(t *testing.T) {
			s := New()
			defer s.Close()
			limit(&s.state.limits)
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
				if n := s.state.retained.Load(); n > 40_000+11_000 {
					t.Fatalf("%d bytes kept after %d writes", n, i+1)
				}
			}
			if _, err := drain(t, slow); !errors.Is(err, resource.ErrWatchReset) {
				t.Errorf("the slow watch: %v, want ErrWatchReset", err)
			}
			if n := s.state.retained.Load(); n != 0 {
				t.Errorf("%d bytes kept for nobody", n)
			}
		})
	}
}

// TestOthersSleep: a write wakes those who watch or wait for its name or a prefix of it, and nobody else.
func TestOthersSleep(t *testing.T) {
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
			t.Errorf("woken: %v, want %v", woken, want)
		}
		s.Close()
	})
}

// TestFollowersRace: followers that stop, begin and lag beside writers see no gap, and leave nothing behind.
func TestFollowersRace(t *testing.T) {
	s := New()
	defer s.Close()
	s.state.limits.events = 8
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
					} else if begun && ev.GetUpsert() != nil { // beside each is the deletion of its predecessor
						index := resourceOf(ev).GetModifyIndex()
						if last != 0 && index != last+1 {
							t.Errorf("event of index %d after %d", index, last)
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
	if n := s.state.retained.Load(); n != 0 {
		t.Errorf("%d bytes kept for nobody", n)
	}
}
