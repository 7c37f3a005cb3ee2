// SPDX-License-Identifier: MPL-2.0

package keyring

import (
	"context"
	"slices"
	"sync"
	"time"

	"github.com/wanfed/wanfed/api/pb"
	"github.com/wanfed/wanfed/federation"
	"github.com/wanfed/wanfed/gossip"
	"github.com/wanfed/wanfed/internal/backoff"
)

const (
	// syncInterval is the interval of exchanges with one server of this
	// datacenter and with one other datacenter, both chosen at random.
	syncInterval = 30 * time.Second
	// minSyncDelay and maxSyncDelay bound the backoff after a failed exchange.
	minSyncDelay = 500 * time.Millisecond
	maxSyncDelay = 15 * time.Second
	// secondaryHold delays the exchange with a datacenter that is new or
	// reachable again and is not the primary. If gossip reaches the datacenter
	// during the hold, the keyrings have a common key, and the exchange is not
	// needed. Without the hold, N datacenters that start together open N*N
	// connections for it.
	secondaryHold = 10 * time.Second
	// holdPerDC is the shortest hold per known datacenter. Many datacenters that
	// start together are alive later.
	holdPerDC = 500 * time.Millisecond
	// maxSyncs bounds the exchanges in flight. Each may dial, and in a large
	// federation that starts, most of these dials fail.
	maxSyncs = 4
	// pacePerDC is the time, per known datacenter, between the starts of two exchanges
	// with secondaries, or of two with the primary, up to maxPace. Otherwise all servers
	// of a large federation exchange keyrings with all datacenters when its start takes
	// longer than the hold.
	pacePerDC = 50 * time.Millisecond
	maxPace   = 10 * time.Second
)

// syncTarget is the target of an exchange: any server of another datacenter, or
// a server of this datacenter at an address.
type syncTarget struct{ dc, node, addr string }

// syncState is the state of one target. Only Run's goroutine uses it.
type syncState struct {
	running    bool
	failures   int       // number of failed exchanges in a row
	due        time.Time // zero means that no exchange is due until a change
	held       bool      // due is the end of a hold
	since      time.Time // start of the hold
	started    time.Time // start of the last exchange
	alive      bool      // see Service.targets
	recoveries int       // dcrpc.Reachability.Recoveries of its datacenter
}

// Run exchanges keyrings with other servers until ctx ends: see the package
// documentation.
func (s *Service) Run(ctx context.Context) error {
	var wg sync.WaitGroup
	defer wg.Wait()
	states := map[syncTarget]*syncState{}
	type result struct {
		target syncTarget
		ok     bool
	}
	done := make(chan result, maxSyncs) // a send never blocks, because at most maxSyncs exchanges run
	tick := time.NewTicker(backoff.Jitter(syncInterval))
	defer tick.Stop()
	var keys <-chan struct{}
	p := pace{local: s.DC, primary: s.PrimaryDC}
	for {
		if s.Store != nil {
			s.Store.Reconcile()
			keys = s.Store.Changed()
		}
		lan, book := s.LAN.Changed(), s.Book.Changed()
		reachability, reachabilityChanged := s.Calls.Reachability()
		recoveries := map[string]int{}
		for dc, r := range reachability {
			recoveries[dc] = r.Recoveries
		}
		updateTargets(states, s.targets(), recoveries, s.hold, time.Now())
		p.interval = min(time.Duration(len(s.Book.Load().Paths))*pacePerDC, maxPace)
		started, wait := startDue(states, &p, time.Now())
		for _, t := range started {
			wg.Go(func() { done <- result{t, s.sync(ctx, t)} })
		}
		select {
		case r := <-done:
			states[r.target].finished(r.ok, time.Now())
		case <-time.After(wait):
		case <-lan:
		case <-book:
		case <-reachabilityChanged:
		case <-keys:
			keyringChanged(states, s.DC, time.Now())
		case <-tick.C:
			if s.Store != nil {
				pickRandom(states, s.DC, time.Now())
			}
		case <-ctx.Done():
			return nil
		}
	}
}

// pace spaces the exchanges with other datacenters.
type pace struct {
	local, primary string // datacenters
	interval       time.Duration
	last           time.Time // start of the last exchange with a secondary
}

// wait returns the time until an exchange with t, which is due, may start.
func (p *pace) wait(t syncTarget, st *syncState, now time.Time) time.Duration {
	switch t.dc {
	case p.local:
		return 0
	case p.primary: // it may be reachable for moments
		return p.interval - now.Sub(st.started)
	}
	return p.interval - now.Sub(p.last)
}

// start records the start of an exchange with t.
func (p *pace) start(t syncTarget, st *syncState, now time.Time) {
	if st.started = now; t.dc != p.local && t.dc != p.primary {
		p.last = now
	}
}

// hold returns the time for which an exchange with t is delayed.
func (s *Service) hold(t syncTarget) time.Duration {
	if t.dc == s.DC || t.dc == s.PrimaryDC {
		return 0
	}
	return backoff.Jitter(max(secondaryHold, time.Duration(len(s.Book.Load().Paths))*holdPerDC))
}

// targets returns all known targets, and whether each is alive: a server in the
// LAN pool, or any server of another datacenter in the WAN pool. While no other
// server of this datacenter is alive, the targets include Config.RetryJoin and
// Config.Servers.
func (s *Service) targets() map[syncTarget]bool {
	out := map[syncTarget]bool{}
	alone := true
	for _, m := range s.LAN.Members() {
		if m.Name != s.Node && m.Status != gossip.StatusLeft {
			out[syncTarget{s.DC, m.Name, m.Addr}] = m.Alive()
			alone = alone && !m.Alive()
		}
	}
	if alone {
		for _, addr := range s.RetryJoin() {
			out[syncTarget{dc: s.DC, addr: addr}] = false
		}
		for node, addr := range s.Servers() {
			out[syncTarget{s.DC, node, addr}] = false
		}
	}
	for dc := range s.Book.Load().Paths {
		out[syncTarget{dc: dc}] = false
	}
	for _, m := range s.WAN.Members() {
		t := syncTarget{dc: federation.DatacenterOf(m.Name)}
		if _, ok := out[t]; ok && m.Alive() {
			out[t] = true
		}
	}
	return out
}

// sync exchanges keyrings with t. ok is false if the exchange must be retried.
func (s *Service) sync(ctx context.Context, t syncTarget) (ok bool) {
	var reported []*pb.ServerKeyring
	var err error
	if t.dc == s.DC {
		reported = make([]*pb.ServerKeyring, 1)
		reported[0], err = s.exchangeWithServer(ctx, t.node, t.addr, nil)
	} else {
		reported, err = s.exchangeWithDatacenter(ctx, t.dc, &pb.ExchangeKeyringRequest{})
	}
	if err != nil {
		s.Logger.Debug("cannot exchange gossip keyrings", "peer", t.dc+"/"+t.node, "addr", t.addr, "err", err)
		return false
	}
	if s.Store == nil {
		return true // a mismatch was logged; only a restart with a key resolves it
	}
	return !slices.ContainsFunc(reported, func(sk *pb.ServerKeyring) bool { return mismatch(s.Self(), sk) != "" })
}

// updateTargets adds and removes states so that they match targets. A target
// that is new, or reachable again, is due after its hold. A server of this
// datacenter is also due when it is alive again.
func updateTargets(
	states map[syncTarget]*syncState, targets map[syncTarget]bool, recoveries map[string]int,
	hold func(syncTarget) time.Duration, now time.Time,
) {
	for t, alive := range targets {
		st := states[t]
		isNew, isServer := st == nil, t.node != "" || t.addr != ""
		if isNew {
			st = &syncState{}
			states[t] = st
		}
		if isNew || recoveries[t.dc] > st.recoveries || isServer && alive && !st.alive {
			wait := hold(t)
			st.due, st.failures, st.held, st.since = now.Add(wait), 0, wait > 0, now
		}
		switch {
		case st.held && alive:
			st.due, st.held = time.Time{}, false
		case st.held && !st.due.After(now): // more datacenters may be known now
			if due := st.since.Add(hold(t)); due.After(now) {
				st.due = due
			}
		}
		st.alive, st.recoveries = alive, recoveries[t.dc]
	}
	for t, st := range states {
		if _, ok := targets[t]; !ok && !st.running {
			delete(states, t)
		}
	}
}

// startDue marks the due targets as running and returns them. It also returns
// the time until the next target is due.
func startDue(states map[syncTarget]*syncState, p *pace, now time.Time) (started []syncTarget, wait time.Duration) {
	wait = time.Hour
	running := 0
	for _, st := range states {
		if st.running {
			running++
		}
	}
	for t, st := range states {
		switch remaining := st.due.Sub(now); {
		case st.running || st.due.IsZero():
		case remaining > 0:
			wait = min(wait, remaining)
		case running >= maxSyncs: // the end of a running exchange wakes Run
		case p.wait(t, st, now) > 0:
			wait = min(wait, p.wait(t, st, now))
		default:
			p.start(t, st, now)
			st.running, st.due, st.held = true, time.Time{}, false
			running++
			started = append(started, t)
		}
	}
	return started, wait
}

// finished records the result of an exchange.
func (st *syncState) finished(ok bool, now time.Time) {
	st.running = false
	if ok {
		st.failures = 0
		return
	}
	st.failures++
	if st.due.IsZero() { // otherwise a change has already made the target due
		st.due = now.Add(backoff.Delay(st.failures, minSyncDelay, maxSyncDelay))
	}
}

// keyringChanged makes all targets of this datacenter due, and all targets with
// a failed exchange.
func keyringChanged(states map[syncTarget]*syncState, local string, now time.Time) {
	for t, st := range states {
		if t.dc == local || st.failures > 0 {
			st.due = now
		}
	}
}

// pickRandom makes one server of this datacenter and one other datacenter due.
func pickRandom(states map[syncTarget]*syncState, local string, now time.Time) {
	pickedLocal, pickedRemote := false, false
	for t, st := range states { // in random order
		picked := &pickedRemote
		if t.dc == local {
			picked = &pickedLocal
		}
		if !*picked && st.due.IsZero() {
			st.due, *picked = now, true
		}
	}
}
