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

// A member that leaves says so twice: by serf's farewell, which has the others expect its end, and then by memberlist's, which is the
// end; who hears the second alone calls the member failed. By gossip the first takes as long as all its copies: two seconds and more
// between datacenters. So it is told at once, to everybody, and the second goes out with the next round of gossip.

const (
	// propagate is how long this member still answers after its farewells.
	propagate = 300 * time.Millisecond
	// maxTold bounds the members that are told at once. In a larger pool these, chosen by chance, tell it on.
	maxTold = 32
	// look is how often to look whether serf has its farewell ready: it does not say.
	look = 5 * time.Millisecond
)

// body is one serf of a pool, with the Config that it reads.
type body struct {
	*serf.Serf
	cfg *serf.Config
}

// leave ends the pool's life.
func (p *Pool) leave(s body) error {
	if err := s.farewell(); err != nil {
		p.cfg.Logger.Warn("leaving the gossip pool", "err", err)
	}
	if err := errors.Join(p.cfg.Transport.Shutdown(), s.Shutdown()); err != nil {
		return fmt.Errorf("stop gossip pool of %s: %w", p.cfg.Name, err)
	}
	return nil
}

// farewell tells the others that this member leaves, and returns once that is out, which takes less than a second and a half; at
// once, if there is nobody to tell.
func (s body) farewell() error {
	others := s.others()
	if len(others) == 0 {
		s.cfg.LeavePropagateDelay = 0 // Leave alone reads it
		return s.Leave()
	}
	done := make(chan struct{})
	var wg sync.WaitGroup
	defer wg.Wait()
	defer close(done)
	wg.Go(func() { s.tell(others, done) })
	return s.Leave()
}

// others are the addresses of alive members, as many as may be told at once.
func (s body) others() []memberlist.Address {
	var out []memberlist.Address
	for _, m := range s.Members() {
		if m.Status == serf.StatusAlive && m.Name != s.cfg.NodeName {
			out = append(out, memberlist.Address{Addr: addrOf(m), Name: m.Name})
		}
	}
	rand.Shuffle(len(out), func(i, j int) { out[i], out[j] = out[j], out[i] })
	return out[:min(len(out), maxTold)]
}

// tell takes serf's news out of its queue, as rounds of gossip do, and tells it to all others, once, until done. For serf it is out
// when it was taken as often as it would have been for gossip: then Leave goes on.
func (s body) tell(others []memberlist.Address, done <-chan struct{}) {
	ml := s.cfg.MemberlistConfig
	told := map[string]bool{}
	tick := time.NewTicker(look)
	defer tick.Stop()
	for {
		for _, msg := range ml.Delegate.GetBroadcasts(perMessage, ml.UDPBufferSize-perPacket) {
			if told[string(msg)] {
				continue
			}
			told[string(msg)] = true
			for _, to := range others {
				_ = s.Memberlist().SendToAddress(to, msg) // who cannot be told hears it from others
			}
		}
		select {
		case <-tick.C:
		case <-done:
			return
		}
	}
}

// What a packet needs beside messages, in bytes: for each of them, and in all.
const (
	perMessage = 3
	perPacket  = 100
)
