// SPDX-License-Identifier: MPL-2.0

package gossip

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"time"

	"github.com/hashicorp/memberlist"
	"github.com/hashicorp/serf/serf"
)

// A member leaves with two messages. Serf's leave message announces the end, and
// memberlist's message is the end. A member that receives only the second one
// considers the leaving member failed. Gossip needs two seconds and more to send
// all copies of the first message between datacenters. So the first message is
// sent to all members at once, and the second follows in the next gossip round.

const (
	// leavePropagateDelay is how long this member answers after its messages.
	leavePropagateDelay = 300 * time.Millisecond
	// maxLeaveTargets limits the direct recipients of a leave message. In a
	// larger pool, randomly chosen members forward it.
	maxLeaveTargets = 32
	// queuePollInterval is the interval at which the queue of serf is read,
	// because serf does not report when its leave message is in the queue.
	queuePollInterval = 5 * time.Millisecond
)

// stop leaves the pool and shuts down s and the transport.
func (p *Pool) stop(s instance) error {
	if err := s.leave(); err != nil {
		p.cfg.Logger.Warn("cannot leave gossip pool", "err", err)
	}
	if err := errors.Join(p.cfg.Transport.Shutdown(), s.Shutdown()); err != nil {
		return fmt.Errorf("stop gossip pool of %s: %w", p.cfg.Name, err)
	}
	return nil
}

// leave announces that this member leaves. It returns when the messages are
// sent: within a second and a half, or at once if no other member is alive.
func (s instance) leave() error {
	targets := s.leaveTargets()
	if len(targets) == 0 {
		s.cfg.LeavePropagateDelay = 0 // only Leave reads it
		return s.Leave()
	}
	done := make(chan struct{})
	var wg sync.WaitGroup
	defer wg.Wait()
	defer close(done)
	wg.Go(func() { s.sendQueued(targets, done) })
	return s.Leave()
}

// leaveTargets returns the addresses of up to maxLeaveTargets alive members.
func (s instance) leaveTargets() []memberlist.Address {
	var out []memberlist.Address
	for _, m := range s.Members() {
		if m.Status == serf.StatusAlive && m.Name != s.cfg.NodeName {
			out = append(out, memberlist.Address{Addr: addrOf(m), Name: m.Name})
		}
	}
	rand.Shuffle(len(out), func(i, j int) { out[i], out[j] = out[j], out[i] })
	return out[:min(len(out), maxLeaveTargets)]
}

// sendQueued takes messages out of serf's queue, as gossip rounds do, and sends
// each once to all targets, until done is closed. Serf considers a message sent
// when it was taken as often as gossip would take it. Then Leave continues.
func (s instance) sendQueued(targets []memberlist.Address, done <-chan struct{}) {
	const messageOverhead, packetOverhead = 3, 100 // bytes
	ml := s.cfg.MemberlistConfig
	sent := map[string]bool{}
	tick := time.NewTicker(queuePollInterval)
	defer tick.Stop()
	for {
		for _, msg := range ml.Delegate.GetBroadcasts(messageOverhead, ml.UDPBufferSize-packetOverhead) {
			if sent[string(msg)] {
				continue
			}
			sent[string(msg)] = true
			for _, to := range targets {
				// A member that this misses receives the message from others.
				_ = s.Memberlist().SendToAddress(to, msg)
			}
		}
		select {
		case <-tick.C:
		case <-done:
			return
		}
	}
}
