// SPDX-License-Identifier: MPL-2.0

package kv

import (
	"context"
	"sync"
	"sync/atomic"
	"testing"

	"google.golang.org/protobuf/proto"

	"github.com/wanfed/wanfed/api/pb"
	"github.com/wanfed/wanfed/resource"
	"github.com/wanfed/wanfed/resource/memory"
)

// counted counts what a Store asks of its backend.
type counted struct {
	resource.Backend
	commits, reads atomic.Int64
}

func (c *counted) Commit(ctx context.Context, ops ...*pb.Op) ([]*pb.Resource, error) {
	c.commits.Add(1)
	return c.Backend.Commit(ctx, ops...)
}

func (c *counted) Read(ctx context.Context, how resource.Consistency, id *pb.ID) (*pb.Resource, error) {
	c.reads.Add(1)
	return c.Backend.Read(ctx, how, id)
}

// TestPutTogether: of clients that write the same key without a condition each needs one step, and none a second one. A key keeps
// what stands beside its value.
func TestPutTogether(t *testing.T) {
	b := memory.New()
	defer b.Close()
	c := &counted{Backend: b}
	s := newStore(t, c, operator())
	mustPut(t, s, "one", "first")
	first := get(t, s, "one")
	r, err := b.Read(t.Context(), resource.Strong, resource.ID(EntryType, "one"))
	if err != nil {
		t.Fatal(err)
	}
	r = proto.CloneOf(r)
	r.Metadata = map[string]string{"of": "somebody"}
	if _, err := b.Commit(t.Context(), resource.PutOp(r, r.Version)); err != nil {
		t.Fatal(err)
	}

	const clients, each = 64, 10
	commits, reads := c.commits.Load(), c.reads.Load()
	var wg sync.WaitGroup
	for i := range clients {
		wg.Go(func() {
			for range each {
				if done, err := s.Put(t.Context(), Entry{Key: "one", Value: []byte{byte(i)}, Flags: uint64(i)}, Precondition{}); err != nil || !done {
					t.Error(done, err)
				}
			}
		})
	}
	wg.Wait()
	if n, m := c.commits.Load()-commits, c.reads.Load()-reads; n != clients*each || m != 0 {
		t.Errorf("%d writes took %d commits and %d reads", clients*each, n, m)
	}
	last := get(t, s, "one")
	if len(last.Value) != 1 || uint64(last.Value[0]) != last.Flags || last.CreateIndex != first.CreateIndex {
		t.Errorf("%+v, made as %+v", last, first)
	}
	if now, err := b.Read(t.Context(), resource.Strong, r.Id); err != nil || now.Metadata["of"] != "somebody" {
		t.Errorf("%v, %v", now, err)
	}
	if done, err := s.Put(t.Context(), Entry{Key: "one"}, IfIndex(first.ModifyIndex)); done || err != nil {
		t.Errorf("a condition that does not hold: %t, %v", done, err)
	}
}

// older is a backend of which a server understands no overwrites.
type older struct{ resource.Backend }

func (o older) Commit(ctx context.Context, ops ...*pb.Op) ([]*pb.Resource, error) {
	if err := resource.CheckSupported(ops, func() (int, string) { return 1, "srv2" }); err != nil {
		return nil, err
	}
	return o.Backend.Commit(ctx, ops...)
}

func TestPutWithOlderServers(t *testing.T) {
	b := memory.New()
	defer b.Close()
	s := newStore(t, older{b}, operator())
	for i := range 3 {
		mustPut(t, s, "one", string(rune('a'+i)))
		if got := get(t, s, "one"); string(got.Value) != string(rune('a'+i)) {
			t.Errorf("write %d: %q", i, got.Value)
		}
	}
}

// TestPutOfTheSame: who puts what is there changes nothing, with a condition that holds or without one, and with older servers too.
func TestPutOfTheSame(t *testing.T) {
	for name, backend := range map[string]func(resource.Backend) resource.Backend{
		"":            func(b resource.Backend) resource.Backend { return b },
		" with older": func(b resource.Backend) resource.Backend { return older{b} },
	} {
		b := memory.New()
		defer b.Close()
		s := newStore(t, backend(b), operator())
		e := Entry{Key: "one", Value: []byte("a"), Flags: 7}
		put := func(e Entry, only Precondition) Entry {
			t.Helper()
			if done, err := s.Put(t.Context(), e, only); !done || err != nil {
				t.Fatalf("put%s: %t, %v", name, done, err)
			}
			return *get(t, s, "one")
		}
		first := put(e, IfIndex(0))
		if again := put(e, Precondition{}); again.ModifyIndex != first.ModifyIndex {
			t.Errorf("put again%s: %+v, was %+v", name, again, first)
		}
		if again := put(e, IfIndex(first.ModifyIndex)); again.ModifyIndex != first.ModifyIndex {
			t.Errorf("put again, as a compare-and-swap%s: %+v, was %+v", name, again, first)
		}
		if done, err := s.Put(t.Context(), e, IfIndex(first.ModifyIndex-1)); done || err != nil {
			t.Errorf("with another index%s: %t, %v", name, done, err)
		}
		e.Flags++
		if now := put(e, Precondition{}); now.ModifyIndex == first.ModifyIndex || now.Flags != 8 {
			t.Errorf("other flags%s: %+v", name, now)
		}
	}
}
