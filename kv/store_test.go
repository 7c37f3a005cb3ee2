// SPDX-License-Identifier: MPL-2.0

package kv

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/wanfed/wanfed/api/pb"
	"github.com/wanfed/wanfed/internal/testutil"
	"github.com/wanfed/wanfed/resource"
	"github.com/wanfed/wanfed/resource/resourcetest"
	"github.com/wanfed/wanfed/session"
	"github.com/wanfed/wanfed/tlsutil"
)

// newStore returns a Store over b. The Store authorizes *caller.
func newStore(t testing.TB, b resource.Backend, caller *tlsutil.Peer) *Store {
	t.Helper()
	reg := resource.NewRegistry()
	if err := errors.Join(Register(reg), session.Register(reg)); err != nil {
		t.Fatal(err)
	}
	svc, err := resource.NewService(resource.ServiceConfig{
		Backend: b, Registry: reg, DC: "dc1", Primary: func() bool { return false },
		Peer: func(context.Context) (tlsutil.Peer, error) { return *caller, nil }, Decide: resourcetest.Decide(caller),
	})
	if err != nil {
		t.Fatal(err)
	}
	s, err := New(svc, b)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func operator() *tlsutil.Peer {
	return &tlsutil.Peer{Role: tlsutil.RoleOperator, DC: "dc1", Node: "joe"}
}

func memoryStore(t testing.TB) *Store {
	t.Helper()
	b := resourcetest.NewStore()
	t.Cleanup(func() { b.Close() })
	return newStore(t, b, operator())
}

func mustPut(t testing.TB, s *Store, key, value string) {
	t.Helper()
	if done, err := s.Put(t.Context(), Entry{Key: key, Value: []byte(value)}, Precondition{}); err != nil || !done {
		t.Fatalf("Put(%q) = %t, %v, want true", key, done, err)
	}
}

func get(t testing.TB, s *Store, key string) *Entry {
	t.Helper()
	e, index, err := s.Get(t.Context(), resource.Strong, key)
	if err != nil || e != nil && index < e.ModifyIndex {
		t.Fatalf("Get(%q) = %v, index %d, %v; want an index of at least the entry's", key, e, index, err)
	}
	return e
}

func TestPutAndDelete(t *testing.T) {
	s, ctx := memoryStore(t), t.Context()
	if get(t, s, "a") != nil {
		t.Fatal("Get(a) of an empty store = an entry, want nil")
	}
	if done, err := s.Put(ctx, Entry{Key: "a", Value: []byte("1"), Flags: 7}, Precondition{}); !done || err != nil {
		t.Fatalf("Put(a) = %t, %v, want true", done, err)
	}
	first := get(t, s, "a")
	if first == nil || string(first.Value) != "1" || first.Flags != 7 || first.CreateIndex == 0 ||
		first.CreateIndex != first.ModifyIndex {
		t.Fatalf("Get(a) = %+v, want value 1, flags 7 and the index of one write", first)
	}
	for _, test := range []struct {
		only Precondition
		want bool
	}{{IfIndex(0), false}, {IfIndex(first.ModifyIndex + 1), false}, {IfIndex(first.ModifyIndex), true},
		{IfIndex(first.ModifyIndex), false}} {
		if done, err := s.Put(ctx, Entry{Key: "a", Value: []byte("2")}, test.only); done != test.want || err != nil {
			t.Errorf("Put(a, %+v) = %t, %v, want %t", test.only, done, err, test.want)
		}
	}
	second := get(t, s, "a")
	if string(second.Value) != "2" || second.Flags != 0 || second.CreateIndex != first.CreateIndex ||
		second.ModifyIndex <= first.ModifyIndex {
		t.Errorf("Get(a) after the second write = %+v, after the first %+v; want value 2 and a later ModifyIndex",
			second, first)
	}
	for _, test := range []struct {
		only Precondition
		want bool
	}{{IfIndex(0), false}, {IfIndex(first.ModifyIndex), false}, {IfIndex(second.ModifyIndex), true},
		{IfIndex(second.ModifyIndex), true}, {IfIndex(0), true}, {Precondition{}, true}} {
		if done, err := s.Delete(ctx, "a", test.only); done != test.want || err != nil {
			t.Errorf("Delete(a, %+v) = %t, %v, want %t", test.only, done, err, test.want)
		}
	}
	if get(t, s, "a") != nil {
		t.Error("Get(a) after Delete = an entry, want nil")
	}
	if done, err := s.Put(ctx, Entry{Key: "a"}, IfIndex(second.ModifyIndex)); done || err != nil {
		t.Errorf("Put with the index of a deleted key = %t, %v, want false", done, err)
	}
	if done, err := s.Put(ctx, Entry{Key: "a"}, IfIndex(0)); !done || err != nil {
		t.Errorf("Put of a new key = %t, %v, want true", done, err)
	}
}

func TestListAndKeys(t *testing.T) {
	s, ctx := memoryStore(t), t.Context()
	for _, key := range []string{"a", "a/b/c", "a/b", "a/b/d", "a/é//x", "a/*", "b/..", " "} {
		mustPut(t, s, key, "v "+key)
	}
	entries, index, err := s.List(ctx, resource.Eventual, "a/b")
	if err != nil || len(entries) != 3 || entries[1].Key != "a/b/c" || string(entries[1].Value) != "v a/b/c" ||
		index < entries[2].ModifyIndex {
		t.Errorf("List(a/b) = %v, index %d, %v; want a/b, a/b/c and a/b/d", entries, index, err)
	}
	for _, test := range []struct{ prefix, separator, want string }{
		{"", "", " |a|a/*|a/b|a/b/c|a/b/d|a/é//x|b/.."},
		{"", "/", " |a|a/|b/"},
		{"a/", "/", "a/*|a/b|a/b/|a/é/"},
		{"a/", "//", "a/*|a/b|a/b/c|a/b/d|a/é//"},
		{"a/b/", "/", "a/b/c|a/b/d"},
		{"nothing", "/", ""},
	} {
		keys, _, err := s.Keys(ctx, resource.Eventual, test.prefix, test.separator)
		if err != nil || strings.Join(keys, "|") != test.want {
			t.Errorf("Keys(%q, %q) = %q, %v, want %s", test.prefix, test.separator, keys, err, test.want)
		}
	}
	if err := s.DeleteTree(ctx, "a/b"); err != nil {
		t.Error(err)
	}
	if keys, _, err := s.Keys(ctx, resource.Eventual, "a/", ""); err != nil ||
		!slices.Equal(keys, []string{"a/*", "a/é//x"}) {
		t.Errorf("Keys(a/) after DeleteTree(a/b) = %q, %v, want a/* and a/é//x", keys, err)
	}
	if err := s.DeleteTree(ctx, ""); err != nil {
		t.Error(err)
	}
	if keys, _, err := s.Keys(ctx, resource.Eventual, "", ""); err != nil || len(keys) != 0 {
		t.Errorf("Keys() after DeleteTree() = %q, %v, want none", keys, err)
	}
}

// counting counts the commits that reach the store, and how many ops each had.
type counting struct {
	resource.Backend
	mu  sync.Mutex
	ops []int
}

func (c *counting) Commit(ctx context.Context, ops ...*pb.Op) ([]*pb.Resource, error) {
	c.mu.Lock()
	c.ops = append(c.ops, len(ops))
	c.mu.Unlock()
	return c.Backend.Commit(ctx, ops...)
}

func TestDeleteTree_SeveralBatches(t *testing.T) {
	mem := resourcetest.NewStore()
	defer mem.Close()
	b := &counting{Backend: mem}
	s := newStore(t, b, operator())
	var puts []*pb.Op
	for i := range DeleteTreeBatch + 1 {
		r, err := resource.NewNamed(EntryType, fmt.Sprintf("t/%d", i), resource.CheckUTF8Name, &pb.KVEntry{})
		if err != nil {
			t.Fatal(err)
		}
		puts = append(puts, resource.PutOp(r, ""))
	}
	if _, err := mem.Commit(t.Context(), puts...); err != nil {
		t.Fatal(err)
	}
	if err := s.DeleteTree(t.Context(), "t/"); err != nil || !slices.Equal(b.ops, []int{DeleteTreeBatch, 1}) {
		t.Errorf("DeleteTree() made commits of %v ops, %v; want %d and 1", b.ops, err, DeleteTreeBatch)
	}
}

func TestStore_Refuses(t *testing.T) {
	caller := operator()
	mem := resourcetest.NewStore()
	defer mem.Close()
	s, ctx := newStore(t, mem, caller), t.Context()
	mustPut(t, s, "a", "1")
	for _, key := range []string{"", strings.Repeat("x", 513), "a\x00b", "\xff"} {
		if _, err := s.Put(ctx, Entry{Key: key}, Precondition{}); !errors.Is(err, resource.ErrInvalid) {
			t.Errorf("Put(%.10q) = %v, want ErrInvalid", key, err)
		}
		if _, _, err := s.Get(ctx, resource.Eventual, key); !errors.Is(err, resource.ErrInvalid) {
			t.Errorf("Get(%.10q) = %v, want ErrInvalid", key, err)
		}
	}
	mustPut(t, s, strings.Repeat("x", 512), "")
	if _, err := s.Put(ctx, Entry{Key: "big", Value: bytes.Repeat([]byte("v"), MaxValue+1)},
		Precondition{}); !errors.Is(err, resource.ErrInvalid) {
		t.Errorf("Put of a value that is too large = %v, want ErrInvalid", err)
	}
	if _, err := s.Put(ctx, Entry{Key: "big", Value: bytes.Repeat([]byte("v"), MaxValue)}, Precondition{}); err != nil {
		t.Error(err)
	}
	*caller = tlsutil.Peer{Role: tlsutil.RoleClient, DC: "dc1", Node: "app"}
	if get(t, s, "a") == nil {
		t.Error("Get(a) by a client = nil, want the entry")
	}
	_, errPut := s.Put(ctx, Entry{Key: "a"}, IfIndex(99)) // denied before the condition is checked
	_, errDelete := s.Delete(ctx, "a", Precondition{})
	if errTree := s.DeleteTree(ctx, "x"); !errors.Is(errPut, resource.ErrDenied) ||
		!errors.Is(errDelete, resource.ErrDenied) || !errors.Is(errTree, resource.ErrDenied) {
		t.Errorf("Put, Delete, DeleteTree by a client = %v; %v; %v; want ErrDenied", errPut, errDelete, errTree)
	}
	caller.Role = tlsutil.RoleGateway
	_, _, errGet := s.Get(ctx, resource.Eventual, "a")
	if _, _, err := s.List(ctx, resource.Eventual, ""); !errors.Is(err, resource.ErrDenied) ||
		!errors.Is(errGet, resource.ErrDenied) {
		t.Errorf("Get, List by a gateway = %v; %v; want ErrDenied", errGet, err)
	}
}

// TestPut_Concurrent: concurrent writes of one key do not fail, and
// compare-and-swap loses no update.
func TestPut_Concurrent(t *testing.T) {
	s, ctx := memoryStore(t), t.Context()
	var wg sync.WaitGroup
	const writers, each = 8, 50
	for w := range writers {
		wg.Go(func() {
			for range each {
				if done, err := s.Put(ctx, Entry{Key: "blind", Value: fmt.Append(nil, w)}, Precondition{}); !done ||
					err != nil {
					t.Errorf("Put() = %t, %v, want true", done, err)
				}
				for done := false; !done; {
					n, at := 0, uint64(0)
					if e := get(t, s, "counter"); e != nil {
						at = e.ModifyIndex
						fmt.Sscan(string(e.Value), &n)
					}
					var err error
					if done, err = s.Put(ctx, Entry{Key: "counter", Value: fmt.Append(nil, n+1)},
						IfIndex(at)); err != nil {
						t.Error(err)
						return
					}
				}
			}
		})
	}
	wg.Wait()
	if e := get(t, s, "counter"); string(e.Value) != fmt.Sprint(writers*each) {
		t.Errorf("counter = %s, want %d", e.Value, writers*each)
	}
}

func TestWait(t *testing.T) {
	testutil.Bubble(t, func(t *testing.T) {
		b := resourcetest.NewStore()
		defer b.Close()
		s := newStore(t, b, operator())
		mustPut(t, s, "other", "1")
		_, index, err := s.Get(t.Context(), resource.Eventual, "a/b")
		if err != nil {
			t.Fatal(err)
		}
		for name, wait := range map[string]func(ctx context.Context, after uint64) error{
			"key":    func(ctx context.Context, after uint64) error { return s.WaitKey(ctx, "a/b", after) },
			"prefix": func(ctx context.Context, after uint64) error { return s.WaitPrefix(ctx, "a/", after) },
		} {
			ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
			done := make(chan error, 1)
			go func() { done <- wait(ctx, index) }()
			synctest.Wait()
			mustPut(t, s, "other", name)
			synctest.Wait()
			select {
			case err := <-done:
				t.Errorf("Wait of a %s returned %v after a write of another key", name, err)
				done <- err
			default:
			}
			mustPut(t, s, "a/b", name)
			if err := <-done; err != nil {
				t.Errorf("Wait of a %s = %v, want nil", name, err)
			}
			cancel()
			if _, index, err = s.Get(t.Context(), resource.Eventual, "a/b"); err != nil {
				t.Fatal(err)
			}
		}
	})
}
