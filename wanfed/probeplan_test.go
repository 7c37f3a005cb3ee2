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
		e      pathHistory
		spread float64
		want   time.Duration
	}{
		{"works", pathHistory{lastSuccess: ago(1)}, 0, every},
		{"with spread", pathHistory{lastSuccess: ago(1)}, 1, 25 * time.Second},
		{"failed once", pathHistory{lastSuccess: worked, lastFailure: ago(1), failedProbes: 1}, 0, 3 * time.Second},
		{"failed twice", pathHistory{lastSuccess: worked, lastFailure: ago(1), failedProbes: 2}, 0, 6 * time.Second},
		{"failed often", pathHistory{lastSuccess: worked, lastFailure: ago(1), failedProbes: 99}, 0, every},
		{"a dial failed, or was overtaken", pathHistory{lastSuccess: worked, lastFailure: ago(1)}, 0, 3 * time.Second},
		{"never worked", pathHistory{lastFailure: ago(1), failedProbes: 1}, 0, 3 * time.Second},
		{"never worked, and failed five times", pathHistory{lastFailure: ago(1), failedProbes: 5}, 0, 48 * time.Second},
		{"never worked, and failed often", pathHistory{lastFailure: ago(1), failedProbes: 99}, 0, 5 * time.Minute},
		{"works again", pathHistory{lastSuccess: ago(1), lastFailure: worked}, 0, every},
	} {
		if got := tt.e.probeWait(every, tt.spread); got != tt.want {
			t.Errorf("%s: %v, want %v", tt.name, got, tt.want)
		}
	}
}

func TestPlan(t *testing.T) {
	const every = 20 * time.Second
	good := func(d time.Duration) pathHistory { return pathHistory{lastSuccess: ago(d)} }
	failed := func(d time.Duration, fails int) pathHistory {
		return pathHistory{lastSuccess: ago(time.Hour), lastFailure: ago(d), failedProbes: fails}
	}
	for _, tt := range []struct {
		name   string
		book   string
		ev     map[string]pathHistory
		busy   string
		favour bool
		want   string // "": none
		wait   time.Duration
	}{
		{"a new hop at once", "a b", map[string]pathHistory{"a": good(0)}, "", true, "b", 0},
		{"but only once at a time", "a b", map[string]pathHistory{"a": good(0)}, "b", true, "", every},
		{"all are fresh", "a b", map[string]pathHistory{"a": good(5 * time.Second), "b": good(time.Second)}, "", true, "", 15 * time.Second},
		{"the one that waits longest", "a b c", map[string]pathHistory{"a": good(30 * time.Second), "b": good(40 * time.Second), "c": good(0)}, "", true, "b", 0},
		{"the failed one first", "a b", map[string]pathHistory{"a": good(time.Hour), "b": failed(3*time.Second, 1)}, "", true, "b", 0},
		{"but not each time", "a b", map[string]pathHistory{"a": good(time.Hour), "b": failed(3*time.Second, 1)}, "", false, "a", 0},
		{"nor when it has failed for long", "a b", map[string]pathHistory{"a": good(time.Hour), "b": failed(time.Minute, 4)}, "", true, "a", 0},
		{"what never worked is not urgent", "a b", map[string]pathHistory{"a": good(time.Hour), "b": {lastFailure: ago(time.Minute), failedProbes: 1}}, "", true, "a", 0},
		{"urgent or not, when only that is due", "a b", map[string]pathHistory{"a": good(0)}, "", false, "b", 0},
		{"a remembered hop not while another works", "a br", map[string]pathHistory{"a": good(0)}, "", true, "", every},
		{"but when none does", "a br", map[string]pathHistory{"a": failed(0, 1)}, "", true, "b", 0},
		{"no hops", "", nil, "", true, "", 0},
	} {
		t.Run(tt.name, func(t *testing.T) {
			book := &SharedAddressBook{}
			book.Store(&AddressBook{Paths: map[string][]Path{"dc2": hopsOf(tt.book), "dc1": hopsOf("z")}})
			p := newPathTable(book, "dc1", ModeLocal)
			for addr, e := range tt.ev {
				p.update("dc2", Path{Addr: addr}, func(s *pathState) { s.pathHistory = e })
			}
			busy := map[pathKey]bool{}
			for _, r := range tt.busy {
				busy[pathKey{"dc2", string(r)}] = true
			}
			got := p.planProbe(every, busy, tt.favour, scoreNow)
			if got.path.Addr != tt.want || got.found != (tt.want != "") || got.wait != tt.wait {
				t.Errorf("%+v, want %q, wait %v", got, tt.want, tt.wait)
			}
		})
	}
}
