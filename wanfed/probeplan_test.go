// SPDX-License-Identifier: MPL-2.0

package wanfed

import (
	"testing"
	"time"
)

func TestProbeWait(t *testing.T) {
	const every = 20 * time.Second
	worked := ago(time.Hour)
	for _, tt := range []struct {
		name   string
		e      evidence
		spread float64
		want   time.Duration
	}{
		{"works", evidence{good: ago(1)}, 0, every},
		{"with spread", evidence{good: ago(1)}, 1, 25 * time.Second},
		{"failed once", evidence{good: worked, bad: ago(1), fails: 1}, 0, 3 * time.Second},
		{"failed twice", evidence{good: worked, bad: ago(1), fails: 2}, 0, 6 * time.Second},
		{"failed often", evidence{good: worked, bad: ago(1), fails: 99}, 0, every},
		{"a dial failed, or was overtaken", evidence{good: worked, bad: ago(1)}, 0, 3 * time.Second},
		{"never worked", evidence{bad: ago(1), fails: 1}, 0, 3 * time.Second},
		{"never worked, and failed five times", evidence{bad: ago(1), fails: 5}, 0, 48 * time.Second},
		{"never worked, and failed often", evidence{bad: ago(1), fails: 99}, 0, 5 * time.Minute},
		{"works again", evidence{good: ago(1), bad: worked}, 0, every},
	} {
		if got := tt.e.probeWait(every, tt.spread); got != tt.want {
			t.Errorf("%s: %v, want %v", tt.name, got, tt.want)
		}
	}
}

func TestPlan(t *testing.T) {
	const every = 20 * time.Second
	good := func(d time.Duration) evidence { return evidence{good: ago(d)} }
	failed := func(d time.Duration, fails int) evidence {
		return evidence{good: ago(time.Hour), bad: ago(d), fails: fails}
	}
	for _, tt := range []struct {
		name   string
		book   string
		ev     map[string]evidence
		busy   string
		favour bool
		want   string // "": none
		wait   time.Duration
	}{
		{"a new hop at once", "a b", map[string]evidence{"a": good(0)}, "", true, "b", 0},
		{"but only once at a time", "a b", map[string]evidence{"a": good(0)}, "b", true, "", every},
		{"all are fresh", "a b", map[string]evidence{"a": good(5 * time.Second), "b": good(time.Second)}, "", true, "", 15 * time.Second},
		{"the one that waits longest", "a b c", map[string]evidence{"a": good(30 * time.Second), "b": good(40 * time.Second), "c": good(0)}, "", true, "b", 0},
		{"the failed one first", "a b", map[string]evidence{"a": good(time.Hour), "b": failed(3*time.Second, 1)}, "", true, "b", 0},
		{"but not each time", "a b", map[string]evidence{"a": good(time.Hour), "b": failed(3*time.Second, 1)}, "", false, "a", 0},
		{"nor when it has failed for long", "a b", map[string]evidence{"a": good(time.Hour), "b": failed(time.Minute, 4)}, "", true, "a", 0},
		{"what never worked is not urgent", "a b", map[string]evidence{"a": good(time.Hour), "b": {bad: ago(time.Minute), fails: 1}}, "", true, "a", 0},
		{"urgent or not, when only that is due", "a b", map[string]evidence{"a": good(0)}, "", false, "b", 0},
		{"a remembered hop not while another works", "a br", map[string]evidence{"a": good(0)}, "", true, "", every},
		{"but when none does", "a br", map[string]evidence{"a": failed(0, 1)}, "", true, "b", 0},
		{"no hops", "", nil, "", true, "", 0},
	} {
		t.Run(tt.name, func(t *testing.T) {
			book := &SharedAddressBook{}
			book.Store(&AddressBook{Paths: map[string][]Path{"dc2": hopsOf(tt.book), "dc1": hopsOf("z")}})
			p := newPaths(book, "dc1", ModeLocal)
			for addr, e := range tt.ev {
				p.update("dc2", Path{Addr: addr}, func(s *pathState) { s.evidence = e })
			}
			busy := map[pathKey]bool{}
			for _, r := range tt.busy {
				busy[pathKey{"dc2", string(r)}] = true
			}
			got := p.plan(every, busy, tt.favour, scoreNow)
			if got.hop.Addr != tt.want || got.found != (tt.want != "") || got.wait != tt.wait {
				t.Errorf("%+v, want %q, wait %v", got, tt.want, tt.wait)
			}
		})
	}
}
