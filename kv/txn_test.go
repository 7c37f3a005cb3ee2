// SPDX-License-Identifier: MPL-2.0

package kv

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/wanfed/wanfed/api/pb"
	"github.com/wanfed/wanfed/resource"
	"github.com/wanfed/wanfed/resource/resourcetest"
	"github.com/wanfed/wanfed/tlsutil"
)

// show formats entries as key=value, and failures as position and reason.
func show(entries []Entry, failed []Failure) string {
	var out []string
	for _, e := range entries {
		out = append(out, e.Key+"="+string(e.Value))
	}
	for _, f := range failed {
		out = append(out, fmt.Sprintf("%d: %s", f.Op, f.Reason))
	}
	return strings.Join(out, "; ")
}

// TestTxn runs transactions one after the other on the same store.
func TestTxn(t *testing.T) {
	s, ctx := memoryStore(t), t.Context()
	mustPut(t, s, "a", "1")
	mustPut(t, s, "t/1", "x")
	mustPut(t, s, "t/2", "y")
	at := get(t, s, "a").ModifyIndex
	op := func(verb Verb, key string) Op { return Op{Verb: verb, Key: key} }
	withIndex := func(verb Verb, key string, index uint64) Op { return Op{Verb: verb, Key: key, Index: index} }
	set := func(verb Verb, key, value string) Op { return Op{Verb: verb, Key: key, Value: []byte(value)} }

	for _, test := range []struct {
		name   string
		ops    []Op
		want   string
		stored string
	}{
		{"no ops", nil, "", "a=1; t/1=x; t/2=y"},
		{
			"reads",
			[]Op{
				op(VerbGet, "a"), op(VerbGetTree, "t/"), op(VerbGetOrEmpty, "none"),
				op(VerbCheckNotExists, "none"), withIndex(VerbCheckIndex, "a", at),
			},
			"a=1; t/1=x; t/2=y; none=; a=",
			"a=1; t/1=x; t/2=y",
		},
		{
			"reads that fail",
			[]Op{
				op(VerbGet, "none"), op(VerbGet, "a"), op(VerbCheckNotExists, "a"),
				withIndex(VerbCheckIndex, "a", at+1), withIndex(VerbCheckIndex, "none", 1),
			},
			`0: key "none" doesn't exist; 2: key "a" exists; ` +
				fmt.Sprintf(`3: key "a" has ModifyIndex %d, not %d; `, at, at+1) + `4: key "none" doesn't exist`,
			"a=1; t/1=x; t/2=y",
		},
		{
			"a failure undoes all",
			[]Op{set(VerbSet, "a", "2"), op(VerbDeleteTree, ""), withIndex(VerbCAS, "b", 1), op(VerbGet, "a")},
			`2: failed to set key "b", index is stale; 3: key "a" doesn't exist`,
			"a=1; t/1=x; t/2=y",
		},
		{
			"check of one key and write of another",
			[]Op{withIndex(VerbCheckIndex, "a", at), set(VerbCAS, "b", "1"), op(VerbGet, "b")},
			"a=; b=; b=1",
			"a=1; b=1; t/1=x; t/2=y",
		},
		{
			"earlier writes are visible",
			[]Op{
				set(VerbSet, "t/3", "z"), op(VerbDelete, "t/1"), op(VerbGetTree, "t/"),
				op(VerbDeleteTree, "t/"), op(VerbGetTree, "t/"), set(VerbSet, "t/2", "new"),
			},
			"t/3=; t/2=y; t/3=z; t/2=",
			"a=1; b=1; t/2=new",
		},
		{
			"earlier writes have no index",
			[]Op{
				set(VerbSet, "a", "3"), withIndex(VerbCheckIndex, "a", at), withIndex(VerbCAS, "a", at),
				op(VerbCAS, "a"), withIndex(VerbDeleteCAS, "a", at),
			},
			`1: key "a" is written by an earlier operation of the transaction; ` +
				`2: failed to set key "a", index is stale; 3: failed to set key "a", index is stale; ` +
				`4: failed to delete key "a", index is stale`,
			"a=1; b=1; t/2=new",
		},
		{
			"delete and create",
			[]Op{withIndex(VerbDeleteCAS, "a", at), {Verb: VerbCAS, Key: "a", Value: []byte("4"), Flags: 9},
				withIndex(VerbDeleteCAS, "none", 7)},
			"a=",
			"a=4; b=1; t/2=new",
		},
		{"no effect", []Op{op(VerbDelete, "none"), op(VerbDeleteTree, "none")}, "", "a=4; b=1; t/2=new"},
		{"delete all", []Op{op(VerbDeleteTree, "")}, "", ""},
	} {
		t.Run(test.name, func(t *testing.T) {
			got, failed, err := s.Txn(ctx, resource.Strong, test.ops)
			if err != nil || show(got, failed) != test.want {
				t.Errorf("Txn() = %s, %v; want %s", show(got, failed), err, test.want)
			}
			for _, e := range got {
				now := get(t, s, e.Key)
				if now == nil || test.name == "earlier writes are visible" { // changed by a later op
					continue
				}
				if e.ModifyIndex != now.ModifyIndex || e.CreateIndex != now.CreateIndex {
					t.Errorf("Txn() returned %+v, want the indexes of %+v", e, now)
				}
			}
			all, _, err := s.List(ctx, resource.Strong, "")
			if err != nil || show(all, nil) != test.stored {
				t.Errorf("List() = %s, %v; want %s", show(all, nil), err, test.stored)
			}
		})
	}
}

func TestTxn_Refuses(t *testing.T) {
	caller := operator()
	mem := resourcetest.NewStore()
	defer mem.Close()
	s, ctx := newStore(t, mem, caller), t.Context()
	for _, ops := range [][]Op{
		{{Verb: "lock", Key: "a"}}, {{Verb: VerbGet}}, {{Verb: VerbSet, Key: "a\x00"}},
		{{Verb: VerbGetTree, Key: strings.Repeat("x", 513)}},
		{{Verb: VerbSet, Key: "a"}, {Verb: VerbSet, Key: "b", Value: make([]byte, MaxValue+1)}},
	} {
		if _, _, err := s.Txn(ctx, resource.Strong, ops); !errors.Is(err, resource.ErrInvalid) {
			t.Errorf("Txn(%.60v) = %v, want ErrInvalid", ops, err)
		}
	}
	var puts []*pb.Op
	for i := range DeleteTreeBatch + 1 {
		r, err := resource.NewNamed(EntryType, fmt.Sprintf("t/%d", i), resource.CheckUTF8Name, &pb.KVEntry{})
		if err != nil {
			t.Fatal(err)
		}
		puts = append(puts, resource.PutOp(r, ""))
	}
	if _, err := mem.Commit(ctx, puts...); err != nil {
		t.Fatal(err)
	}
	if got, _, err := s.Txn(ctx, resource.Strong, []Op{{Verb: VerbGetTree, Key: "t/"}}); err != nil ||
		len(got) != DeleteTreeBatch+1 {
		t.Errorf("read of a large tree = %d entries, %v; want %d", len(got), err, DeleteTreeBatch+1)
	}
	if _, _, err := s.Txn(ctx, resource.Strong,
		[]Op{{Verb: VerbDeleteTree, Key: "t/"}}); !errors.Is(err, resource.ErrInvalid) {
		t.Errorf("deletion of a large tree = %v, want ErrInvalid", err)
	}
	caller.Role = tlsutil.RoleClient
	if _, _, err := s.Txn(ctx, resource.Strong, []Op{{Verb: VerbGet, Key: "t/1"}}); err != nil {
		t.Errorf("read by a client = %v, want nil", err)
	}
	if _, failed, err := s.Txn(ctx, resource.Strong,
		[]Op{{Verb: VerbGet, Key: "none"}, {Verb: VerbSet, Key: "a"}}); !errors.Is(err, resource.ErrDenied) {
		t.Errorf("write by a client = %v, %v, want ErrDenied", failed, err)
	}
	caller.Role = tlsutil.RoleGateway
	if _, _, err := s.Txn(ctx, resource.Strong,
		[]Op{{Verb: VerbGet, Key: "t/1"}}); !errors.Is(err, resource.ErrDenied) {
		t.Errorf("read by a gateway = %v, want ErrDenied", err)
	}
}

// TestTxn_Model performs random transactions on a Store and on a map, and
// compares the results.
func TestTxn_Model(t *testing.T) {
	s, rnd := memoryStore(t), rand.New(rand.NewPCG(1, 2))
	model := map[string]string{}
	index := map[string]uint64{}
	keys := []string{"a", "b", "b/1", "b/2", "c"}
	for range 2000 {
		var ops []Op
		next, want, fails := maps.Clone(model), []string(nil), false
		written := map[string]bool{}
		for range 1 + rnd.IntN(4) {
			op := Op{Key: keys[rnd.IntN(len(keys))], Value: fmt.Append(nil, rnd.IntN(100))}
			value, there := next[op.Key]
			switch op.Verb = []Verb{VerbSet, VerbCAS, VerbDelete, VerbDeleteTree, VerbGet, VerbGetTree,
				VerbCheckNotExists}[rnd.IntN(7)]; op.Verb {
			case VerbCAS:
				op.Index = index[op.Key] + rnd.Uint64N(2)
				if fits := there && !written[op.Key] && op.Index == index[op.Key] || !there && op.Index == 0; !fits {
					fails = true
				}
				fallthrough
			case VerbSet:
				next[op.Key], written[op.Key] = string(op.Value), true
				want = append(want, op.Key+"=")
			case VerbDelete:
				delete(next, op.Key)
			case VerbDeleteTree:
				maps.DeleteFunc(next, func(key, _ string) bool { return strings.HasPrefix(key, op.Key) })
			case VerbGet:
				fails = fails || !there
				want = append(want, op.Key+"="+value)
			case VerbGetTree:
				for _, key := range keys {
					if v, ok := next[key]; ok && strings.HasPrefix(key, op.Key) {
						want = append(want, key+"="+v)
					}
				}
			case VerbCheckNotExists:
				fails = fails || there
			}
			ops = append(ops, op)
		}
		got, failed, err := s.Txn(t.Context(), resource.Strong, ops)
		if err != nil || fails != (failed != nil) || !fails && show(got, nil) != strings.Join(want, "; ") {
			t.Fatalf("Txn(%v) on %v = %s, %v; want %q, failure %t", ops, model, show(got, failed), err, want, fails)
		}
		if !fails {
			model = next
		}
		all, _, err := s.List(t.Context(), resource.Strong, "")
		clear(index)
		stored := map[string]string{}
		for _, e := range all {
			stored[e.Key], index[e.Key] = string(e.Value), e.ModifyIndex
		}
		if err != nil || !maps.Equal(stored, model) {
			t.Fatalf("stored after Txn(%v) = %v, %v; want %v", ops, stored, err, model)
		}
	}
}

// TestTxn_Blind: transactions that only set and delete do not conflict, and
// commit once.
func TestTxn_Blind(t *testing.T) {
	mem := resourcetest.NewStore()
	defer mem.Close()
	b := &counting{Backend: mem}
	s := newStore(t, b, operator())
	var wg sync.WaitGroup
	const writers, each = 8, 50
	for w := range writers {
		wg.Go(func() {
			for i := range each {
				value := fmt.Appendf(nil, "%d.%d", w, i)
				got, failed, err := s.Txn(t.Context(), resource.Strong, []Op{
					{Verb: VerbSet, Key: "a", Value: value}, {Verb: VerbDelete, Key: "c"},
					{Verb: VerbSet, Key: "b", Value: value}, {Verb: VerbDelete, Key: "none"},
					{Verb: VerbSet, Key: "c", Value: value},
				})
				if err != nil || failed != nil || len(got) != 3 || got[0].ModifyIndex == 0 ||
					got[2].CreateIndex != got[0].ModifyIndex {
					t.Errorf("Txn() = %v, %v, %v; want three entries of one index", got, failed, err)
				}
			}
		})
	}
	wg.Wait()
	if len(b.ops) != writers*each {
		t.Errorf("%d transactions made %d commits, want one commit each", writers*each, len(b.ops))
	}
	values := map[string]bool{}
	for _, key := range []string{"a", "b", "c"} {
		values[string(get(t, s, key).Value)] = true
	}
	if len(values) != 1 {
		t.Errorf("values of a, b and c = %v, want one value", values)
	}
}

// TestTxn_Concurrent moves amounts between keys in several goroutines. Every
// read sees the same sum. A transaction also fails because of a key that it
// only checks: once "closed" exists, no transaction changes anything.
func TestTxn_Concurrent(t *testing.T) {
	s, ctx := memoryStore(t), t.Context()
	keys := []string{"k/0", "k/1", "k/2", "k/3"}
	for _, key := range keys {
		mustPut(t, s, key, "100")
	}
	read := func(ops ...Op) (values []int, at []uint64) {
		got, failed, err := s.Txn(ctx, resource.Strong, ops)
		if err != nil || failed != nil {
			t.Errorf("Txn(reads) = failures %v, %v; want none", failed, err)
		}
		for _, e := range got {
			n := 0
			fmt.Sscan(string(e.Value), &n)
			values, at = append(values, n), append(at, e.ModifyIndex)
		}
		return values, at
	}
	sum := func(ops ...Op) {
		values, _ := read(ops...)
		total := 0
		for _, n := range values {
			total += n
		}
		if total != 400 {
			t.Errorf("sum of %v = %d, want 400", values, total)
		}
	}
	var gets []Op
	for _, key := range keys {
		gets = append(gets, Op{Verb: VerbGet, Key: key})
	}
	wctx, cancel := context.WithTimeout(ctx, 500*time.Millisecond)
	defer cancel()
	var wg sync.WaitGroup
	for w := range 4 {
		wg.Go(func() {
			for wctx.Err() == nil {
				from, to := w, (w+1)%4
				values, at := read(gets[from], gets[to])
				if len(at) != 2 {
					return
				}
				_, _, err := s.Txn(ctx, resource.Strong, []Op{
					{Verb: VerbCheckNotExists, Key: "closed"},
					{Verb: VerbCAS, Key: keys[from], Value: fmt.Append(nil, values[0]-1), Index: at[0]},
					{Verb: VerbCAS, Key: keys[to], Value: fmt.Append(nil, values[1]+1), Index: at[1]},
				})
				if err != nil {
					t.Error(err)
				}
			}
		})
	}
	for wctx.Err() == nil {
		sum(gets...)
		sum(Op{Verb: VerbGetTree, Key: "k/"})
		sum(Op{Verb: VerbGetTree, Key: "k/"}, Op{Verb: VerbSet, Key: "seen"}) // with a write
	}
	got, failed, err := s.Txn(ctx, resource.Strong, append(slices.Clone(gets), Op{Verb: VerbSet, Key: "closed"}))
	if err != nil || failed != nil {
		t.Fatalf("Txn(set closed) = failures %v, %v; want none", failed, err)
	}
	wg.Wait()
	for _, e := range got[:4] {
		if now := get(t, s, e.Key); now.ModifyIndex != e.ModifyIndex || string(now.Value) != string(e.Value) {
			t.Errorf("entry after the key closed = %+v, want %+v", now, e)
		}
	}
}

// TestTxn_RepeatedEntries: a short transaction cannot return the same keys so
// often that its result is much larger than the store.
func TestTxn_RepeatedEntries(t *testing.T) {
	s, ctx := memoryStore(t), t.Context()
	for i := range 4 {
		mustPut(t, s, fmt.Sprint("t/", i), strings.Repeat("x", MaxValue))
	}
	each := slices.Repeat([]Op{{Verb: VerbGet, Key: "t/1"}}, 128)
	if got, failed, err := s.Txn(ctx, resource.Strong, each); err != nil || failed != nil || len(got) != len(each) {
		t.Errorf("128 reads of one key = %d entries, %v, %v; want %d entries", len(got), failed, err, len(each))
	}
	for _, write := range [][]Op{nil, {{Verb: VerbSet, Key: "b"}}} {
		// 4 * 127 values exceed maxRepeated
		trees := append(slices.Repeat([]Op{{Verb: VerbGetTree, Key: "t/"}}, 127), write...)
		if got, failed, err := s.Txn(ctx, resource.Strong, trees); !errors.Is(err, resource.ErrInvalid) {
			t.Errorf("127 reads of a tree = %d entries, %v, %v; want ErrInvalid", len(got), failed, err)
		}
	}
	if e := get(t, s, "b"); e != nil {
		t.Errorf("refused transaction wrote %+v, want nothing", e)
	}
}
