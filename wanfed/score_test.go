// SPDX-License-Identifier: MPL-2.0

package wanfed

import (
	"testing"
	"time"
)

func TestOrderHops(t *testing.T) {
	now := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	ago := func(d time.Duration) time.Time { return now.Add(-d) }
	for _, tt := range []struct {
		name string
		book string // one letter per hop
		ev   map[string]evidence
		want string
	}{
		{"nothing known: the book's order", "abc", nil, "abc"},
		{"success does not change the order", "abc", map[string]evidence{"c": {good: ago(time.Second)}}, "abc"},
		{"a failure goes behind", "abc", map[string]evidence{"a": {bad: ago(time.Second)}}, "bca"},
		{"worked since: back in front", "abc", map[string]evidence{"a": {bad: ago(2 * time.Second), good: ago(time.Second)}}, "abc"},
		{"worked before only: behind", "abc", map[string]evidence{"a": {good: ago(2 * time.Second), bad: ago(time.Second)}}, "bca"},
		{"an old failure is forgotten", "abc", map[string]evidence{"a": {bad: ago(penalty)}}, "abc"},
		{"a failure just within the penalty", "ab", map[string]evidence{"a": {bad: ago(penalty - 1)}}, "ba"},
		{"all failed: the longest ago first", "abc",
			map[string]evidence{"a": {bad: ago(time.Second)}, "b": {bad: ago(3 * time.Second)}, "c": {bad: ago(2 * time.Second)}}, "bca"},
		{"two failed at once: the book's order", "abc", map[string]evidence{"a": {bad: ago(1)}, "b": {bad: ago(1)}}, "cab"},
		{"none", "", nil, ""},
	} {
		t.Run(tt.name, func(t *testing.T) {
			var hops []Hop
			for _, r := range tt.book {
				hops = append(hops, Hop{Addr: string(r)})
			}
			got := ""
			for _, h := range orderHops(hops, func(h Hop) evidence { return tt.ev[h.Addr] }, now) {
				got += h.Addr
			}
			if got != tt.want {
				t.Errorf("%q, want %q", got, tt.want)
			}
		})
	}
}

func TestBackoff(t *testing.T) {
	b := backoff{min: 100 * time.Millisecond, max: time.Second}
	for i, want := range []time.Duration{100, 200, 400, 800, 1000, 1000} {
		if got := b.next(0); got != want*time.Millisecond {
			t.Errorf("step %d: %v, want %v", i, got, want*time.Millisecond)
		}
	}
	b.reset()
	if got := b.next(1); got != 75*time.Millisecond {
		t.Errorf("after reset, with the largest spread: %v", got)
	}
}

func TestPathsFollowTheBook(t *testing.T) {
	book := &Book{}
	book.Store(&Routes{Hops: map[string][]Hop{"dc2": {{Addr: "a", Via: "own"}, {Addr: "b"}}}, Servers: map[string]string{"srv1": "l"}})
	p := newPaths(book)
	touch := func(dc, addr string) {
		p.update(dc, Hop{Addr: addr, Via: "own"}, "dc1", func(s *pathState) { s.Attempts++ })
	}
	for _, k := range []pathKey{{"dc2", "a"}, {"dc2", "b"}, {"dc2", "x"}, {"dc9", "a"}, {"dc1", "l"}, {"dc1", "x"}, {"dc2", "a"}} {
		touch(k.dc, k.addr)
	}
	got := p.status("dc1")
	if len(got) != 3 || got[0].DC != "dc1" || got[1].Addr != "a" || got[1].Attempts != 2 || got[1].Via != "own" {
		t.Errorf("status = %+v", got)
	}
	book.Store(&Routes{Hops: map[string][]Hop{"dc2": {{Addr: "b"}}}})
	if got := p.status("dc1"); len(got) != 1 || got[0].Addr != "b" {
		t.Errorf("after the hop left the book: %+v", got)
	}
	touch("dc2", "b")
	if len(p.known) != 1 {
		t.Errorf("%d entries are kept", len(p.known))
	}
}
