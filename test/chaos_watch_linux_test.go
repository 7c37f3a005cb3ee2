// SPDX-License-Identifier: MPL-2.0

package test

import (
	"context"
	"maps"
	"sync"
	"testing"
	"time"

	"github.com/wanfed/wanfed/api"
	"github.com/wanfed/wanfed/test/lab"
	"github.com/wanfed/wanfed/test/lab/wan"
)

// gossipWatch records which members servers do not see alive.
type gossipWatch struct {
	cancel context.CancelFunc
	wg     sync.WaitGroup

	mu   sync.Mutex
	seen map[observation]time.Duration // time of the first observation, since the start
}

// observation is the status of a member as one server sees it.
type observation struct{ by, member, status string }

// watchGossip polls the members of the servers ten times a second until the
// test ends.
func watchGossip(t *testing.T, servers []*lab.Node) *gossipWatch {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	w := &gossipWatch{cancel: cancel, seen: map[observation]time.Duration{}}
	t.Cleanup(func() { w.stop() })
	start := time.Now()
	for _, s := range servers {
		w.wg.Go(func() {
			tick := time.NewTicker(100 * time.Millisecond)
			defer tick.Stop()
			for {
				if members, err := wanMembers(ctx, s); err == nil {
					w.record(s.WANName(), members, time.Since(start))
				}
				select {
				case <-tick.C:
				case <-ctx.Done():
					return
				}
			}
		})
	}
	return w
}

func (w *gossipWatch) record(by string, members map[string]api.Member, at time.Duration) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, m := range members {
		s := observation{by, m.Name, m.Status.String()}
		if _, again := w.seen[s]; !again && m.Status != api.MemberAlive {
			w.seen[s] = ms(at)
		}
	}
}

// stop returns the observations. It may be called more than once.
func (w *gossipWatch) stop() map[observation]time.Duration {
	w.cancel()
	w.wg.Wait()
	return maps.Clone(w.seen)
}

// gatewaysInUse returns the gateway of near that carries requests to far, and
// the one that carries requests from far. It counts the packets of one second,
// so requests must run in both directions.
func gatewaysInUse(t *testing.T, l *lab.Lab, near, far *lab.Datacenter) (out, in *lab.Node) {
	t.Helper()
	var mu sync.Mutex
	to := map[[2]string]int{} // packets to the gateways' port, by addresses
	stop := l.Tap(func(b []byte) {
		f, ok := lab.FlowOf(b)
		if ok && f.To.Port() == lab.WANPort {
			mu.Lock()
			defer mu.Unlock()
			to[[2]string{f.From.Addr().String(), f.To.Addr().String()}]++
		}
	})
	<-time.After(time.Second)
	stop()
	mu.Lock()
	defer mu.Unlock()
	var nOut, nIn int
	for _, a := range near.Gateways {
		for _, b := range far.Gateways {
			if n := to[[2]string{a.WAN, b.WAN}]; n > nOut {
				out, nOut = a, n
			}
			if n := to[[2]string{b.WAN, a.WAN}]; n > nIn {
				in, nIn = a, n
			}
		}
	}
	if out == nil || in == nil {
		t.Fatalf("packets between %s and %s = %v, want some in both directions", near.Name, far.Name, to)
	}
	t.Logf("requests of %s use %s (%d packets per second), those of %s use %s (%d)", near.Name, out.Name, nOut,
		far.Name, in.Name, nIn)
	return out, in
}

// worstLate returns the largest delay that the emulator has added to a packet.
func worstLate(l *lab.Lab) (late time.Duration) {
	eachPath(l, func(p *wan.Path) { late = max(late, p.Stats().Late) })
	return late
}

// eachPath calls f with every direction between two gateways.
func eachPath(l *lab.Lab, f func(*wan.Path)) {
	var all []*lab.Node
	for _, dc := range l.Datacenters() {
		all = append(all, dc.Gateways...)
	}
	for i, a := range all {
		for _, b := range all[:i] {
			k := l.WANLink(a, b)
			f(k.There)
			f(k.Back)
		}
	}
}
