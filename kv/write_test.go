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
	"github.com/wanfed/wanfed/resource/resourcetest"
)

// counted counts the calls of a Store to its backend.
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

// TestPut_ConcurrentWithoutCondition: each of several clients that write the
// same key needs one commit and no retry. The key keeps its metadata.
func TestPut_ConcurrentWithoutCondition(t *testing.T) {
	b := resourcetest.NewStore()
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
	r.Metadata = map[string]string{"owner": "team"}
	if _, err := b.Commit(t.Context(), resource.PutOp(r, r.Version)); err != nil {
		t.Fatal(err)
	}

	const clients, each = 64, 10
	commits, reads := c.commits.Load(), c.reads.Load()
	var wg sync.WaitGroup
	for i := range clients {
		wg.Go(func() {
			for range each {
				if done, err := s.Put(t.Context(), Entry{Key: "one", Value: []byte{byte(i)}, Flags: uint64(i)},
					Precondition{}); err != nil || !done {
					t.Errorf("Put() = %t, %v, want true", done, err)
				}
			}
		})
	}
	wg.Wait()
	if n, m := c.commits.Load()-commits, c.reads.Load()-reads; n != clients*each || m != 0 {
		t.Errorf("%d writes made %d commits and %d reads, want as many commits and no read", clients*each, n, m)
	}
	last := get(t, s, "one")
	if len(last.Value) != 1 || uint64(last.Value[0]) != last.Flags || last.CreateIndex != first.CreateIndex {
		t.Errorf("entry after all writes = %+v, want value and flags of one writer, and CreateIndex of %+v",
			last, first)
	}
	if now, err := b.Read(t.Context(), resource.Strong, r.Id); err != nil || now.Metadata["owner"] != "team" {
		t.Errorf("resource after all writes = %v, %v; want its metadata", now, err)
	}
	if done, err := s.Put(t.Context(), Entry{Key: "one"}, IfIndex(first.ModifyIndex)); done || err != nil {
		t.Errorf("Put with an old index = %t, %v, want false", done, err)
	}
}

// TestPut_SameValue: a write of what is stored changes nothing, with and
// without a condition.
func TestPut_SameValue(t *testing.T) {
	s := memoryStore(t)
	e := Entry{Key: "one", Value: []byte("a"), Flags: 7}
	put := func(e Entry, only Precondition) Entry {
		t.Helper()
		if done, err := s.Put(t.Context(), e, only); !done || err != nil {
			t.Fatalf("Put() = %t, %v, want true", done, err)
		}
		return *get(t, s, "one")
	}
	first := put(e, IfIndex(0))
	if again := put(e, Precondition{}); again.ModifyIndex != first.ModifyIndex {
		t.Errorf("entry after a second Put = %+v, want %+v", again, first)
	}
	if again := put(e, IfIndex(first.ModifyIndex)); again.ModifyIndex != first.ModifyIndex {
		t.Errorf("entry after a second Put with its index = %+v, want %+v", again, first)
	}
	if done, err := s.Put(t.Context(), e, IfIndex(first.ModifyIndex-1)); done || err != nil {
		t.Errorf("Put with another index = %t, %v, want false", done, err)
	}
	e.Flags++
	if now := put(e, Precondition{}); now.ModifyIndex == first.ModifyIndex || now.Flags != 8 {
		t.Errorf("entry after Put of other flags = %+v, want flags 8 and a later index", now)
	}
}
