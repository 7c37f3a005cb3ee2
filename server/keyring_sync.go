// SPDX-License-Identifier: MPL-2.0

package server

import (
	"context"
	"math/rand/v2"
	"slices"
	"sync"
	"time"

	"github.com/wanfed/wanfed/api/pb"
	"github.com/wanfed/wanfed/gossip"
)

const (
	// syncEvery is how often one server of the own datacenter and one other datacenter, chosen by chance, are asked.
	syncEvery = 30 * time.Second
	// Pauses before an exchange that failed, or after which gossip still is impossible, is repeated.
	minSyncPause = 500 * time.Millisecond
	maxSyncPause = 15 * time.Second
	// maxSyncs bounds the exchanges under way.
	maxSyncs = 16
)

// syncTarget is whom to exchange rings with: any server of another datacenter, or one of the own at an address.
type syncTarget struct{ dc, node, addr string }

// syncState is what is remembered of one. Only Run's goroutine uses it.
type syncState struct {
	running  bool
	failed   int       // in a row
	next     time.Time // when it is due; zero: it is in order, until something happens
	alive    bool      // in the LAN pool
	regained int       // of its datacenter
}

// Run compares rings with the others until ctx ends: with all of them at the start, with a datacenter or server when it can be
// reached again, with those of the own datacenter when the ring changes, and every now and then with any. That is how a
// server that was cut off or down while keys changed is taught the new ones. Exchanges that cannot work yet are repeated.
func (k *keyring) Run(ctx context.Context) error {
	var wg sync.WaitGroup
	defer wg.Wait()
	states := map[syncTarget]*syncState{}
	type result struct {
		target syncTarget
		ok     bool
	}
	done := make(chan result, maxSyncs) // one for each that runs: none of them blocks
	tick := time.NewTicker(syncEvery + rand.N(syncEvery/4))
	defer tick.Stop()
	var ring <-chan struct{}
	for {
		if k.keys != nil {
			k.keys.Reconcile()
			ring = k.keys.Changed()
		}
		lan, book := k.lan.Changed(), k.book.Changed()
		contacts, turned := k.conns.Reachability()
		regained := map[string]int{}
		for dc, c := range contacts {
			regained[dc] = c.Recoveries
		}
		noteTargets(states, k.targets(), regained, time.Now())
		begun, wait := due(states, time.Now())
		for _, t := range begun {
			wg.Go(func() { done <- result{t, k.sync(ctx, t)} })
		}
		timer := time.NewTimer(wait)
		select {
		case r := <-done:
			states[r.target].ended(r.ok, time.Now())
		case <-timer.C:
		case <-lan:
		case <-book:
		case <-turned:
		case <-ring:
			ringChanged(states, k.cfg.DC, time.Now())
		case <-tick.C:
			if k.keys != nil {
				anyDue(states, k.cfg.DC, time.Now())
			}
		case <-ctx.Done():
			timer.Stop()
			return nil
		}
		timer.Stop()
	}
}

// targets lists everybody whom this server knows, with whether the LAN pool has it alive. As long as that has nobody, those
// to join are asked: this server's keys may be the reason.
func (k *keyring) targets() map[syncTarget]bool {
	out := map[syncTarget]bool{}
	alone := true
	for _, m := range k.lan.Members() {
		if m.Name != k.cfg.Node && m.Status != gossip.StatusLeft {
			out[syncTarget{k.cfg.DC, m.Name, m.Addr}] = m.Alive()
			alone = alone && !m.Alive()
		}
	}
	if alone {
		for _, addr := range k.cfg.RetryJoin {
			out[syncTarget{dc: k.cfg.DC, addr: addr}] = false
		}
	}
	for dc := range k.book.Load().Paths {
		out[syncTarget{dc: dc}] = false
	}
	return out
}

// sync exchanges rings with t. ok is false when it should be tried again.
func (k *keyring) sync(ctx context.Context, t syncTarget) (ok bool) {
	var got []*pb.ServerKeyring
	var err error
	if t.dc == k.cfg.DC {
		var one *pb.ServerKeyring
		one, err = k.askServer(ctx, t.node, t.addr, nil)
		got = []*pb.ServerKeyring{one}
	} else {
		ctx, cancel := context.WithTimeout(ctx, askDatacenterTimeout)
		defer cancel()
		got, err = k.exchange(ctx, k.conns.Reader(t.dc), &pb.ExchangeKeyringRequest{})
	}
	if err != nil {
		k.logger.Debug("comparing gossip keys", "peer", t.dc+"/"+t.node, "addr", t.addr, "err", err)
		return false
	}
	if k.keys == nil {
		return true // what was found was logged; nothing heals it but a start with a key
	}
	return !slices.ContainsFunc(got, func(s *pb.ServerKeyring) bool { return canGossip(k.self(), s) != "" })
}

// noteTargets brings states level with who is known: what is new, or can be reached again, is due.
func noteTargets(states map[syncTarget]*syncState, now map[syncTarget]bool, regained map[string]int, at time.Time) {
	for t, alive := range now {
		s := states[t]
		if s == nil {
			s = &syncState{next: at, regained: regained[t.dc]}
			states[t] = s
		}
		if alive && !s.alive || regained[t.dc] > s.regained {
			s.next, s.failed = at, 0
		}
		s.alive, s.regained = alive, regained[t.dc]
	}
	for t, s := range states {
		if _, ok := now[t]; !ok && !s.running {
			delete(states, t)
		}
	}
}

// due marks as running those whose time has come, and says how long until that of the next.
func due(states map[syncTarget]*syncState, now time.Time) (begun []syncTarget, wait time.Duration) {
	wait = time.Hour
	running := 0
	for _, s := range states {
		if s.running {
			running++
		}
	}
	for t, s := range states {
		switch left := s.next.Sub(now); {
		case s.running || s.next.IsZero():
		case left > 0:
			wait = min(wait, left)
		case running < maxSyncs:
			s.running, s.next = true, time.Time{}
			running++
			begun = append(begun, t)
		} // else: the end of one that runs wakes the loop
	}
	return begun, wait
}

// ended takes down how an exchange went.
func (s *syncState) ended(ok bool, now time.Time) {
	s.running = false
	if ok {
		s.failed = 0
		return
	}
	if s.next.IsZero() { // else something has happened meanwhile that makes it due
		pause := min(minSyncPause<<min(s.failed, 10), maxSyncPause)
		s.next = now.Add(pause + rand.N(pause/4))
	}
	s.failed++
}

// ringChanged makes due whom the new ring may help: the own datacenter, and those with whom exchanges fail.
func ringChanged(states map[syncTarget]*syncState, own string, now time.Time) {
	for t, s := range states {
		if t.dc == own || s.failed > 0 {
			s.next = now
		}
	}
}

// anyDue makes due one server of the own datacenter and one other datacenter, chosen by chance.
func anyDue(states map[syncTarget]*syncState, own string, now time.Time) {
	near, far := false, false
	for t, s := range states { // in random order
		chosen := &far
		if t.dc == own {
			chosen = &near
		}
		if !*chosen && s.next.IsZero() {
			s.next, *chosen = now, true
		}
	}
}
