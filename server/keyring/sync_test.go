// SPDX-License-Identifier: MPL-2.0

package keyring

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/wanfed/wanfed/wanfed"
)

// syncRig has the state of Run, with a clock that the test sets.
type syncRig struct {
	pace   pace
	states map[syncTarget]*syncState
	now    time.Time

	datacenters int // number of other datacenters in the address book
}

func newSyncRig() *syncRig {
	return &syncRig{
		states: map[syncTarget]*syncState{}, now: time.Unix(1000, 0), pace: pace{local: "dc1", primary: "dc2"},
	}
}

// update gives the rig the targets of a server of dc1, whose primary is dc2. The
// value of a target is whether gossip reaches the target. The argument
// recoveries is how often dc2 and dc3 have become reachable again.
func (r *syncRig) update(recoveries int, targets map[syncTarget]bool) {
	book := &wanfed.SharedAddressBook{}
	book.Store(&wanfed.AddressBook{Paths: make(map[string][]wanfed.Path)})
	for i := range r.datacenters {
		book.Load().Paths[fmt.Sprint("dc", i+2)] = nil
	}
	s := &Service{Config: Config{DC: "dc1", PrimaryDC: "dc2", Book: book}}
	updateTargets(r.states, targets, map[string]int{"dc2": recoveries, "dc3": recoveries}, s.hold, r.now)
}

// wantDue starts the exchanges with the due targets, and checks that these
// targets are want.
func (r *syncRig) wantDue(t *testing.T, when string, want ...syncTarget) {
	t.Helper()
	got, _ := startDue(r.states, &r.pace, r.now)
	for _, target := range want {
		if !slices.Contains(got, target) {
			t.Errorf("startDue() %s = %v, want it to contain %v", when, got, target)
		}
	}
	if len(got) != len(want) {
		t.Errorf("startDue() %s = %v, want %v", when, got, want)
	}
}

func (r *syncRig) wantWait(t *testing.T, when string, want time.Duration) {
	t.Helper()
	if _, got := startDue(r.states, &r.pace, r.now); got < want || got > want*5/4 {
		t.Errorf("startDue() %s = wait %v, want %v to %v", when, got, want, want*5/4)
	}
}

func TestSync_DueTargets(t *testing.T) {
	r := newSyncRig()
	local, remote := syncTarget{"dc1", "srv2", "127.0.0.1:1"}, syncTarget{dc: "dc2"}
	both := map[syncTarget]bool{local: false, remote: false}
	r.update(0, both)
	r.wantDue(t, "at the start", local, remote)
	r.wantDue(t, "while they run")
	r.states[local].finished(true, r.now)
	r.states[remote].finished(false, r.now)
	r.wantDue(t, "after a success and a failure")
	r.wantWait(t, "after one failure", minSyncDelay)
	r.update(1, both)
	r.wantDue(t, "when a datacenter is reachable again", remote)
	for range 20 {
		r.states[remote].finished(false, r.now)
		r.states[remote].running, r.states[remote].due = true, time.Time{}
	}
	r.states[remote].finished(false, r.now)
	r.wantWait(t, "after many failures", maxSyncDelay)
	r.update(1, map[syncTarget]bool{local: true, remote: false})
	r.wantDue(t, "when a server is alive again", local)
	r.states[local].finished(true, r.now)
	keyringChanged(r.states, "dc1", r.now)
	r.wantDue(t, "when the keyring changes", local, remote)
	keyringChanged(r.states, "dc1", r.now)
	r.states[local].finished(true, r.now)
	r.wantDue(t, "when the keyring changed during an exchange", local)
	r.states[local].finished(true, r.now)
	r.states[remote].finished(true, r.now)
	pickRandom(r.states, "dc1", r.now)
	r.wantDue(t, "at the interval", local, remote)
	r.states[local].finished(true, r.now)
	r.update(1, map[syncTarget]bool{})
	if got := len(r.states); got != 1 {
		t.Errorf("len(states) without targets = %d, want 1, the state of the running exchange", got)
	}
}

// TestSync_HoldsExchangeWithSecondary checks that an exchange with a secondary
// waits for secondaryHold, and is omitted if gossip reaches the secondary in this
// time. A recovery begins a new hold. The interval does not wait.
func TestSync_HoldsExchangeWithSecondary(t *testing.T) {
	r := newSyncRig()
	secondary := syncTarget{dc: "dc3"}
	r.update(0, map[syncTarget]bool{secondary: false})
	r.wantDue(t, "at the start")
	r.wantWait(t, "at the start", secondaryHold)
	r.update(0, map[syncTarget]bool{secondary: true})
	r.now = r.now.Add(time.Hour)
	r.wantDue(t, "after gossip reached the datacenter during the hold")
	r.update(1, map[syncTarget]bool{secondary: false}) // a recovery: a new hold
	r.now = r.now.Add(2 * secondaryHold)
	r.update(1, map[syncTarget]bool{secondary: false})
	r.wantDue(t, "when gossip did not reach the datacenter during the hold", secondary)
	r.states[secondary].finished(true, r.now)
	r.update(1, map[syncTarget]bool{secondary: true})
	pickRandom(r.states, "dc1", r.now)
	r.update(1, map[syncTarget]bool{secondary: true})
	r.wantDue(t, "at the interval", secondary)
}

// TestSync_HoldGrows checks that the hold is longer in a large federation, whose
// members are alive later when all of them start together.
func TestSync_HoldGrows(t *testing.T) {
	r := newSyncRig()
	r.datacenters = 60
	secondary := syncTarget{dc: "dc3"}
	r.update(0, map[syncTarget]bool{secondary: false})
	r.now = r.now.Add(29 * time.Second)
	r.wantDue(t, "29 s after the start of 60 datacenters")
	r.now = r.now.Add(9 * time.Second)
	r.wantDue(t, "38 s after the start of 60 datacenters", secondary)
}

// TestSync_Pace checks that exchanges with secondaries start one after another, and
// that the primary and local servers do not wait.
func TestSync_Pace(t *testing.T) {
	r := newSyncRig()
	r.pace.interval = time.Second
	primary, local := syncTarget{dc: "dc2"}, syncTarget{dc: "dc1", node: "srv2"}
	r.update(0, map[syncTarget]bool{{dc: "dc3"}: false, {dc: "dc4"}: false, primary: false, local: false})
	r.now = r.now.Add(2 * secondaryHold)
	first, _ := startDue(r.states, &r.pace, r.now)
	if len(first) != 3 || !slices.Contains(first, primary) || !slices.Contains(first, local) {
		t.Errorf("startDue() = %v, want the primary, the local server and one secondary", first)
	}
	r.now = r.now.Add(time.Second / 2)
	if got, wait := startDue(r.states, &r.pace, r.now); len(got) > 0 || wait != time.Second/2 {
		t.Errorf("startDue() after half the interval = %v, wait %v, want none and %v", got, wait, time.Second/2)
	}
	// The primary is reachable again for a moment, and waits too.
	r.states[primary].running, r.states[primary].due = false, r.now
	if got, _ := startDue(r.states, &r.pace, r.now); len(got) > 0 {
		t.Errorf("startDue() for the primary after half the interval = %v, want none", got)
	}
	r.states[primary].due = time.Time{}
	r.now = r.now.Add(time.Second / 2)
	if got, _ := startDue(r.states, &r.pace, r.now); len(got) != 1 || slices.Contains(first, got[0]) {
		t.Errorf("startDue() after the interval = %v, want the other secondary", got)
	}
}

// TestSync_HoldGrowsLater checks that the hold of a target grows with the datacenters that
// become known during it.
func TestSync_HoldGrowsLater(t *testing.T) {
	r := newSyncRig()
	secondary := map[syncTarget]bool{{dc: "dc3"}: false}
	r.update(0, secondary)
	r.datacenters = 100
	r.now = r.now.Add(2 * secondaryHold)
	r.update(0, secondary)
	r.wantDue(t, "20 s after the start of 100 datacenters")
	r.now = r.now.Add(5 * secondaryHold)
	r.update(0, secondary)
	r.wantDue(t, "70 s after it", syncTarget{dc: "dc3"})
}

func TestSync_LimitsExchangesInFlight(t *testing.T) {
	r := newSyncRig()
	targets := map[syncTarget]bool{}
	for i := range 1000 {
		targets[syncTarget{dc: fmt.Sprintf("dc%d", i)}] = false
	}
	r.update(0, targets)
	r.now = r.now.Add(2 * secondaryHold)
	if got, _ := startDue(r.states, &r.pace, r.now); len(got) != maxSyncs {
		t.Errorf("startDue() = %d targets, want %d", len(got), maxSyncs)
	}
	pickRandom(r.states, "dc1", r.now) // does not panic while maxSyncs exchanges run
}
