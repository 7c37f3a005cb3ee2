// SPDX-License-Identifier: MPL-2.0

package memory

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
)

// check compares a tree with a map, and looks at its form.
func (t *tree[V]) check(tb testing.TB, want map[string]V, same func(a, b V) bool) {
	tb.Helper()
	if t.size != len(want) {
		tb.Fatalf("size %d, want %d", t.size, len(want))
	}
	for _, prefix := range []string{"", "1", "12", "zz"} {
		c := t.from(prefix)
		for _, k := range slices.Sorted(maps.Keys(want)) {
			if !strings.HasPrefix(k, prefix) {
				continue
			}
			if v, ok := c.next(); !ok || !same(v, want[k]) {
				tb.Fatalf("prefix %q: next is %v, %t; want %v of key %q", prefix, v, ok, want[k], k)
			}
		}
		if v, ok := c.next(); ok {
			tb.Fatalf("prefix %q: %v after the last", prefix, v)
		}
	}
	for k, v := range want {
		if got, ok := t.get(k); !ok || !same(got, v) {
			tb.Fatalf("get %q: %v, %t; want %v", k, got, ok, v)
		}
	}
	if t.root != nil {
		t.root.check(tb, "", "\xff")
	}
}

// check returns the height.
func (n *node[V]) check(tb testing.TB, from, below string) int {
	tb.Helper()
	if len(n.keys) == 0 || len(n.keys) > maxNode || !slices.IsSorted(n.keys) || len(n.keys) != len(n.vals)+len(n.kids) {
		tb.Fatalf("node of %d keys, %d values, %d kids", len(n.keys), len(n.vals), len(n.kids))
	}
	if n.kids == nil {
		if n.keys[0] < from || n.keys[len(n.keys)-1] >= below {
			tb.Fatalf("leaf from %q to %q, not from %q below %q", n.keys[0], n.keys[len(n.keys)-1], from, below)
		}
		return 1
	}
	height := 0
	for i, kid := range n.kids {
		lower, upper := from, below
		if i > 0 {
			lower = n.keys[i]
		}
		if i+1 < len(n.kids) {
			upper = n.keys[i+1]
		}
		h := kid.check(tb, lower, upper)
		if height != 0 && h != height {
			tb.Fatalf("kids of heights %d and %d", height, h)
		}
		height = h
	}
	return height + 1
}

// TestTree does at random what a map does too, and looks back at copies.
func TestTree(t *testing.T) {
	same := func(a, b int) bool { return a == b }
	for seed := range uint64(6) {
		rnd := rand.New(rand.NewPCG(seed, 1))
		keys := 1 + rnd.IntN(3000)
		var tr tree[int]
		want := map[string]int{}
		var oldTree tree[int]
		var oldWant map[string]int
		o := new(owner)
		for i := range 6000 {
			k := fmt.Sprint(rnd.IntN(keys))
			if seed%3 == 0 && i < 2000 {
				k = fmt.Sprintf("%06d", i)
			}
			if rnd.IntN(10) < 6 == (i < 4000) {
				tr.set(o, k, i)
				want[k] = i
			} else {
				tr.delete(o, k)
				delete(want, k)
			}
			if rnd.IntN(500) == 0 {
				tr.check(t, want, same)
				if oldWant != nil {
					oldTree.check(t, oldWant, same)
				}
				oldTree, oldWant, o = tr, maps.Clone(want), new(owner)
			}
		}
		tr.check(t, want, same)
		for k := range want {
			tr.delete(o, k)
		}
		if tr.root != nil || tr.size != 0 {
			t.Errorf("seed %d: %d keys left of an emptied tree", seed, tr.size)
		}
	}
}
