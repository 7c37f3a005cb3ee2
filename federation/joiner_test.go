// SPDX-License-Identifier: MPL-2.0

package federation

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/wanfed/wanfed/dcrpc"
	"github.com/wanfed/wanfed/gossip"
	"github.com/wanfed/wanfed/internal/broadcast"
	"github.com/wanfed/wanfed/internal/testutil"
	"github.com/wanfed/wanfed/wanfed"
)

// Attempts at new datacenters are held. A server without an alive remote member
// does not hold the first attempts.
func TestPoolView_Hold(t *testing.T) {
	joined := poolView{
		known: map[string]bool{"dc2": true, "dc3": true}, alive: map[string]bool{"dc2": true}, aliveRemote: 1,
	}
	for _, tt := range []struct {
		name   string
		pool   poolView
		target string
		others int
		held   bool
	}{
		{"new datacenter", joined, "*.dc4", 0, true},
		{"failed datacenter", joined, "*.dc3", 0, false},
		{"local server", joined, "srv2.dc1", 0, false},
		{"first target without members", poolView{}, "*.dc4", 0, false},
		{"fourth target without members", poolView{}, "*.dc4", 3, true},
	} {
		t.Run(tt.name, func(t *testing.T) {
			const datacenters = 100
			got, longest := tt.pool.hold(tt.target, tt.others, datacenters), newcomerHold+datacenters*newcomerHoldEach
			if tt.held && (got < newcomerHold || got > longest) {
				t.Errorf("hold() = %v, want %v to %v", got, newcomerHold, longest)
			} else if !tt.held && got != 0 {
				t.Errorf("hold() = %v, want 0", got)
			}
		})
	}
}

// A change of the address book does not shorten a hold.
func TestJoiner_ResetBackoffKeepsHold(t *testing.T) {
	j := &Joiner{cfg: JoinerConfig{WAN: &gossip.Pool{}}, attempts: map[string]*attempt{}}
	now := time.Now()
	j.attempts["*.dc4"] = &attempt{holdUntil: now.Add(newcomerHold), notBefore: now.Add(time.Hour)}
	j.resetBackoff()
	if wait := j.start("*.dc4", poolView{}, now); wait != newcomerHold {
		t.Errorf("start() = %v, want %v", wait, newcomerHold)
	}
	if wait := j.start("*.dc4", poolView{}, now.Add(newcomerHold)); wait != 0 {
		t.Errorf("start() after the hold = %v, want 0", wait)
	}
}

// TestJoiner_Admission checks that few attempts run at once, and that none
// begins while gossip announces datacenters.
func TestJoiner_Admission(t *testing.T) {
	now := time.Now()
	j := &Joiner{cfg: JoinerConfig{WAN: &gossip.Pool{}}, attempts: map[string]*attempt{}}
	for _, target := range []string{"*.dc2", "*.dc3", "*.dc4", "*.dc5"} {
		j.attempts[target] = &attempt{since: now}
	}
	start := func(target string, pool poolView, after, want time.Duration) {
		t.Helper()
		if wait := j.start(target, pool, now.Add(after)); wait != want {
			t.Errorf("start(%s) after %v = %v, want %v", target, after, wait, want)
		}
	}
	start("*.dc2", poolView{}, 0, 0)
	start("*.dc3", poolView{}, 0, 0)
	start("*.dc4", poolView{}, 0, 0)
	start("*.dc5", poolView{}, joinPace/2, joinPace/2)
	j.attempts["srv2.dc1"] = &attempt{since: now}
	start("srv2.dc1", poolView{}, 0, 0) // a local server does not wait
	start("*.dc5", poolView{}, joinPace, 0)

	j.attempts["*.dc6"], j.running, j.alive, j.grown = &attempt{since: now}, 0, 1, now
	start("*.dc6", poolView{}, settleTime/2, settleTime/2)
	j.grown = now.Add(maxSettle)
	start("*.dc6", poolView{}, maxSettle, 0)
	j.attempts["*.dc7"], j.grown = &attempt{since: now}, now
	start("*.dc7", poolView{known: map[string]bool{"dc7": true}}, 0, 0)

	// With 100 datacenters one attempt starts at a time, once gossip reaches any.
	j.attempts["*.dc8"], j.running, j.known = &attempt{since: now}, 0, 100
	start("*.dc8", poolView{known: map[string]bool{"dc8": true}}, joinPace, 24*joinPace)
	j.known = 10000
	start("*.dc8", poolView{known: map[string]bool{"dc8": true}}, joinPace, maxJoinPace-joinPace)
	j.alive, j.running = 0, maxUnheld-1
	start("*.dc8", poolView{known: map[string]bool{"dc8": true}}, joinPace, 0)
}

// TestJoiner_ResyncAllIsBounded checks that a server that does not reach the
// primary contacts a few datacenters at a time, and repeats with a pause.
func TestJoiner_ResyncAllIsBounded(t *testing.T) {
	testutil.Bubble(t, func(t *testing.T) {
		const took, timeout = time.Second, time.Minute
		book := &wanfed.SharedAddressBook{}
		paths := map[string][]wanfed.Path{}
		for i := range 10 {
			paths[fmt.Sprintf("dc%d", i+1)] = []wanfed.Path{{Addr: "192.0.2.1:8443"}}
		}
		book.Store(&wanfed.AddressBook{Paths: paths})
		var running, most, attempts, primary atomic.Int64
		j := &Joiner{cfg: JoinerConfig{Book: book, WaitReachable: func(ctx context.Context, dc string) error {
			attempts.Add(1)
			most.Store(max(most.Load(), running.Add(1)))
			defer running.Add(-1)
			if dc == "dc1" {
				primary.Add(1)
			}
			time.Sleep(took)
			return errors.New("unreachable")
		}}}
		ctx, cancel := context.WithTimeout(t.Context(), timeout)
		defer cancel()
		j.resyncAll(ctx, "dc1", func() (map[string]dcrpc.Reachability, <-chan struct{}) {
			return map[string]dcrpc.Reachability{"dc1": {Unreachable: true}}, nil
		})
		// A round takes 3 s for the 9 secondaries, and a pause of at least 3 s.
		if got := attempts.Load(); got < 9 || got > int64(9*timeout/(6*took)+9) {
			t.Errorf("attempts in %v = %d, want 9 per round", timeout, got)
		}
		if most.Load() != maxResyncs || primary.Load() != 0 {
			t.Errorf("concurrent attempts = %d, attempts at the primary = %d, want %d and 0",
				most.Load(), primary.Load(), maxResyncs)
		}
	})
}

// TestJoiner_ResyncPerOutage checks that a server exchanges state with a few
// datacenters once per outage of the primary, if it is longer than resyncDelay.
func TestJoiner_ResyncPerOutage(t *testing.T) {
	testutil.Bubble(t, func(t *testing.T) {
		book := &wanfed.SharedAddressBook{}
		book.Store(&wanfed.AddressBook{Paths: map[string][]wanfed.Path{"dc2": {{Addr: "192.0.2.1:8443"}}}})
		var attempts atomic.Int64
		j := &Joiner{cfg: JoinerConfig{Book: book, WAN: &gossip.Pool{}, WaitReachable: func(context.Context, string) error {
			attempts.Add(1)
			return errors.New("unreachable")
		}}}
		var mu sync.Mutex
		var primary dcrpc.Reachability
		var changed broadcast.Broadcast
		set := func(r dcrpc.Reachability) {
			mu.Lock()
			primary = r
			mu.Unlock()
			changed.Notify()
		}
		ctx, cancel := context.WithCancel(t.Context())
		var wg sync.WaitGroup
		wg.Go(func() {
			_ = j.RunResync(ctx, "dc1", func() (map[string]dcrpc.Reachability, <-chan struct{}) {
				mu.Lock()
				defer mu.Unlock()
				return map[string]dcrpc.Reachability{"dc1": primary}, changed.Wait()
			})
		})
		for _, step := range []struct {
			primary dcrpc.Reachability
			after   time.Duration
			want    int64
		}{
			{dcrpc.Reachability{Unreachable: true}, resyncDelay / 2, 0},
			{dcrpc.Reachability{Recoveries: 1}, resyncDelay, 0}, // a short outage
			{dcrpc.Reachability{Recoveries: 1, Unreachable: true}, resyncDelay + time.Second, 1},
			{dcrpc.Reachability{Recoveries: 2}, time.Minute, 1},
			{dcrpc.Reachability{Recoveries: 2, Unreachable: true}, resyncDelay + time.Second, 2},
		} {
			set(step.primary)
			time.Sleep(step.after)
			synctest.Wait()
			if got := attempts.Load(); got != step.want {
				t.Errorf("attempts %v after the change to %+v = %d, want %d", step.after, step.primary, got, step.want)
			}
		}
		cancel()
		wg.Wait()
	})
}

func TestPaced(t *testing.T) {
	for datacenters, want := range map[int]time.Duration{
		2: time.Second, 23: time.Second, 24: 2 * time.Second, 100: 5 * time.Second, 10000: maxPaced * time.Second,
	} {
		if got := paced(time.Second, datacenters); got != want {
			t.Errorf("paced(1s, %d) = %v, want %v", datacenters, got, want)
		}
	}
}
