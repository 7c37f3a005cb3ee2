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
	"github.com/wanfed/wanfed/resource"
	"github.com/wanfed/wanfed/resource/memory"
	"github.com/wanfed/wanfed/tlsutil"
)

// newStore returns a Store over b, asked by whom who points to.
func newStore(t testing.TB, b resource.Backend, who *tlsutil.Peer) *Store {
	t.Helper()
	reg := resource.NewRegistry()
	if err := Register(reg); err != nil {
		t.Fatal(err)
	}
	svc, err := resource.NewService(resource.ServiceConfig{
		Backend: b, Registry: reg, DC: "dc1", Primary: func() bool { return false },
		Peer: func(context.Context) (tlsutil.Peer, error) { return *who, nil },
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
	b := memory.New()
	t.Cleanup(func() { b.Close() })
	return newStore(t, b, operator())
}

func mustPut(t testing.TB, s *Store, key, value string) {
	t.Helper()
	if done, err := s.Put(t.Context(), Entry{Key: key, Value: []byte(value)}, Precondition{}); err != nil || !done {
		t.Fatalf("put %q: %t, %v", key, done, err)
	}
}

func get(t testing.TB, s *Store, key string) *Entry {
	t.Helper()
	e, index, err := s.Get(t.Context(), resource.Strong, key)
	if err != nil || e != nil && index < e.ModifyIndex {
		t.Fatalf("get %q: %v, index %d, %v", key, e, index, err)
	}
	return e
}

func TestPutAndDelete(t *testing.T) {
	s, ctx := memoryStore(t), t.Context()
	if get(t, s, "a") != nil {
		t.Fatal("a is there")
	}
	if done, err := s.Put(ctx, Entry{Key: "a", Value: []byte("1"), Flags: 7}, Precondition{}); !done || err != nil {
		t.Fatal(done, err)
	}
	first := get(t, s, "a")
	if first == nil || string(first.Value) != "1" || first.Flags != 7 || first.CreateIndex == 0 || first.CreateIndex != first.ModifyIndex {
		t.Fatalf("%+v", first)
	}
	for _, test := range []struct {
		only Precondition
		want bool
	}{{IfIndex(0), false}, {IfIndex(first.ModifyIndex + 1), false}, {IfIndex(first.ModifyIndex), true}, {IfIndex(first.ModifyIndex), false}} {
		if done, err := s.Put(ctx, Entry{Key: "a", Value: []byte("2")}, test.only); done != test.want || err != nil {
			t.Errorf("put %+v: %t, %v", test.only, done, err)
		}
	}
	second := get(t, s, "a")
	if string(second.Value) != "2" || second.Flags != 0 || second.CreateIndex != first.CreateIndex || second.ModifyIndex <= first.ModifyIndex {
		t.Errorf("%+v after %+v", second, first)
	}
	for _, test := range []struct {
		only Precondition
		want bool
	}{{IfIndex(0), false}, {IfIndex(first.ModifyIndex), false}, {IfIndex(second.ModifyIndex), true}, {IfIndex(second.ModifyIndex), true}, {IfIndex(0), true}, {Precondition{}, true}} {
		if done, err := s.Delete(ctx, "a", test.only); done != test.want || err != nil {
			t.Errorf("delete %+v: %t, %v", test.only, done, err)
		}
	}
	if get(t, s, "a") != nil {
		t.Error("a is still there")
	}
	if done, err := s.Put(ctx, Entry{Key: "a"}, IfIndex(second.ModifyIndex)); done || err != nil {
		t.Errorf("put with the index of a deleted key: %t, %v", done, err)
	}
	if done, err := s.Put(ctx, Entry{Key: "a"}, IfIndex(0)); !done || err != nil {
		t.Errorf("put of a new key: %t, %v", done, err)
	}
}

func TestListAndKeys(t *testing.T) {
	s, ctx := memoryStore(t), t.Context()
	for _, key := range []string{"a", "a/b/c", "a/b", "a/b/d", "a/é//x", "a/*", "b/..", " "} {
		mustPut(t, s, key, "v "+key)
	}
	entries, index, err := s.List(ctx, resource.Eventual, "a/b")
	if err != nil || len(entries) != 3 || entries[1].Key != "a/b/c" || string(entries[1].Value) != "v a/b/c" || index < entries[2].ModifyIndex {
		t.Errorf("%v, index %d, %v", entries, index, err)
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
			t.Errorf("keys of %q by %q: %q, %v", test.prefix, test.separator, keys, err)
		}
	}
	if err := s.DeleteTree(ctx, "a/b"); err != nil {
		t.Error(err)
	}
	if keys, _, err := s.Keys(ctx, resource.Eventual, "a/", ""); err != nil || !slices.Equal(keys, []string{"a/*", "a/é//x"}) {
		t.Errorf("after the deletion of a tree: %q, %v", keys, err)
	}
	if err := s.DeleteTree(ctx, ""); err != nil {
		t.Error(err)
	}
	if keys, _, err := s.Keys(ctx, resource.Eventual, "", ""); err != nil || len(keys) != 0 {
		t.Errorf("after the deletion of all: %q, %v", keys, err)
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

func TestDeleteTreeOfMany(t *testing.T) {
	mem := memory.New()
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
		t.Errorf("commits of %v ops, %v", b.ops, err)
	}
}

func TestWhatIsRefused(t *testing.T) {
	who := operator()
	mem := memory.New()
	defer mem.Close()
	s, ctx := newStore(t, mem, who), t.Context()
	mustPut(t, s, "a", "1")
	for _, key := range []string{"", strings.Repeat("x", 513), "a\x00b", "\xff"} {
		if _, err := s.Put(ctx, Entry{Key: key}, Precondition{}); !errors.Is(err, resource.ErrInvalid) {
			t.Errorf("put %.10q: %v", key, err)
		}
		if _, _, err := s.Get(ctx, resource.Eventual, key); !errors.Is(err, resource.ErrInvalid) {
			t.Errorf("get %.10q: %v", key, err)
		}
	}
	mustPut(t, s, strings.Repeat("x", 512), "")
	if _, err := s.Put(ctx, Entry{Key: "big", Value: bytes.Repeat([]byte("v"), MaxValue+1)}, Precondition{}); !errors.Is(err, resource.ErrInvalid) {
		t.Errorf("too large a value: %v", err)
	}
	if _, err := s.Put(ctx, Entry{Key: "big", Value: bytes.Repeat([]byte("v"), MaxValue)}, Precondition{}); err != nil {
		t.Error(err)
	}
	*who = tlsutil.Peer{Role: tlsutil.RoleClient, DC: "dc1", Node: "app"}
	if get(t, s, "a") == nil {
		t.Error("a client does not see a")
	}
	_, errPut := s.Put(ctx, Entry{Key: "a"}, IfIndex(99)) // refused, though the condition does not hold either
	_, errDelete := s.Delete(ctx, "a", Precondition{})
	if errTree := s.DeleteTree(ctx, "x"); !errors.Is(errPut, resource.ErrDenied) || !errors.Is(errDelete, resource.ErrDenied) || !errors.Is(errTree, resource.ErrDenied) {
		t.Errorf("a client's writes: %v; %v; %v", errPut, errDelete, errTree)
	}
	who.Role = tlsutil.RoleGateway
	_, _, errGet := s.Get(ctx, resource.Eventual, "a")
	if _, _, err := s.List(ctx, resource.Eventual, ""); !errors.Is(err, resource.ErrDenied) || !errors.Is(errGet, resource.ErrDenied) {
		t.Errorf("a gateway's reads: %v; %v", errGet, err)
	}
}

// Writers of one key do not fail on each other, and compare-and-swap loses no update.
func TestConcurrentWriters(t *testing.T) {
	s, ctx := memoryStore(t), t.Context()
	var wg sync.WaitGroup
	const writers, each = 8, 50
	for w := range writers {
		wg.Go(func() {
			for range each {
				if done, err := s.Put(ctx, Entry{Key: "blind", Value: fmt.Append(nil, w)}, Precondition{}); !done || err != nil {
					t.Errorf("put: %t, %v", done, err)
				}
				for done := false; !done; {
					n, at := 0, uint64(0)
					if e := get(t, s, "counter"); e != nil {
						at = e.ModifyIndex
						fmt.Sscan(string(e.Value), &n)
					}
					var err error
					if done, err = s.Put(ctx, Entry{Key: "counter", Value: fmt.Append(nil, n+1)}, IfIndex(at)); err != nil {
						t.Error(err)
						return
					}
				}
			}
		})
	}
	wg.Wait()
	if e := get(t, s, "counter"); string(e.Value) != fmt.Sprint(writers*each) {
		t.Errorf("counter is %s", e.Value)
	}
}

func TestWait(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := memory.New()
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
				t.Errorf("%s: woken by another key: %v", name, err)
				done <- err
			default:
			}
			mustPut(t, s, "a/b", name)
			if err := <-done; err != nil {
				t.Errorf("%s: %v", name, err)
			}
			cancel()
			if _, index, err = s.Get(t.Context(), resource.Eventual, "a/b"); err != nil {
				t.Fatal(err)
			}
		}
	})
}
