// SPDX-License-Identifier: MPL-2.0

package wanfed

import (
	"context"
	"crypto/tls"
	"math/rand/v2"
	"slices"
	"sync"
	"time"
)

// link sends packets to one target: all servers of another datacenter, or one server of the own. Senders push into its
// queue and never wait; its goroutine, run, owns the connection, makes it when there is something to send, and makes it
// anew when it fails. A link that nobody uses retires.
type link struct {
	t     *Tunnel
	to    target
	count [PoolLAN + 1]*counters // by pool; no others are ever pushed
	wake  chan struct{}          // size 1: no push is missed
	began time.Time

	mu      sync.Mutex
	q       frameQueue
	pushed  time.Time // last push
	addr    string    // where memberlist last said the target is; only for the own datacenter
	retired bool      // takes no more; another link has the key, or nobody
	failing bool      // the last thing that happened was a failure
	st      LinkStatus
}

// newLink is called with t.mu held.
func newLink(t *Tunnel, to target) *link {
	l := &link{
		t: t, to: to, wake: make(chan struct{}, 1), began: time.Now(),
		q: frameQueue{max: t.cfg.QueueBytes}, addr: to.addr, st: LinkStatus{DC: to.dc, Node: to.node},
	}
	l.count[PoolWAN] = t.trafficLocked(trafficKey{PoolWAN, to.dc})
	if to.dc == t.own.DC {
		l.count[PoolLAN] = t.trafficLocked(trafficKey{PoolLAN, to.dc})
	}
	return l
}

// push queues a copy of packet for node and returns at once; false means that the link has retired.
func (l *link) push(pool Pool, node, addr string, packet []byte, now time.Time) bool {
	l.mu.Lock()
	if l.retired {
		l.mu.Unlock()
		return false
	}
	first := l.q.bytes() == 0 // else run has been woken, and has not taken them yet
	dropped := l.q.push(pool, node, packet, now.Sub(l.began))
	l.pushed = now
	if node != "" && addr != "" { // without a node it may be made up
		l.addr = addr
	}
	l.mu.Unlock()
	if dropped != (framed{}) {
		l.drop(dropQueueFull, dropped)
	}
	if first {
		select {
		case l.wake <- struct{}{}:
		default:
		}
	}
	return true
}

// drop counts what was lost.
func (l *link) drop(why drop, n framed) {
	for pool, n := range n {
		if n > 0 && l.count[pool] != nil {
			l.count[pool].drop(why, n)
		}
	}
}

// take empties the queue into the caller's hands; spare becomes the queue's buffer.
func (l *link) take(spare []byte) batch {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.q.take(spare)
}

// run lives from the link's first packet until it retires or ctx ends.
func (l *link) run(ctx context.Context) {
	b := backoff{min: l.t.tm.backoffMin, max: l.t.tm.backoffMax}
	outage := false // there was one: a first dial may take its time
	for l.waitWork(ctx) {
		ways := l.ways()
		conn, err := l.dial(ctx)
		if err == nil {
			if outage {
				l.expire(l.t.tm.stale)
			}
			var settled bool
			if settled, err = l.use(ctx, conn); settled {
				b.reset()
			}
		}
		if ctx.Err() != nil {
			break
		}
		if err == nil {
			if l.retireIfIdle() {
				return
			}
			continue
		}
		outage = true
		l.failed(err)
		l.giveUp()
		l.waitRetry(ctx, b.next(rand.Float64()), ways)
	}
	l.retire()
}

// waitWork waits for something to send; false means that the link is to end.
func (l *link) waitWork(ctx context.Context) bool {
	idle := time.NewTimer(l.t.tm.quiet)
	defer idle.Stop()
	for {
		if ctx.Err() != nil {
			return false
		}
		if !l.empty() {
			return true
		}
		select {
		case <-l.wake:
		case <-ctx.Done():
		case <-idle.C:
			if l.retireIfIdle() {
				return false
			}
		}
	}
}

// retire drops what is queued and takes the link out of the tunnel.
func (l *link) retire() {
	l.t.mu.Lock()
	l.leaveLocked()
	l.t.mu.Unlock()
	l.mu.Lock()
	l.retired = true
	lost := l.q.take(nil)
	l.mu.Unlock()
	l.drop(dropExpired, lost.count)
}

// retireIfIdle takes the link out of the tunnel unless a packet has just come.
func (l *link) retireIfIdle() bool {
	l.t.mu.Lock()
	defer l.t.mu.Unlock()
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.q.bytes() > 0 {
		return false
	}
	l.retired = true
	l.leaveLocked()
	if l.failing {
		delete(l.t.met, l.to) // that it is up again will be news
	}
	return true
}

// leaveLocked takes the link out of the tunnel. It is called with t.mu held.
func (l *link) leaveLocked() {
	if l.t.links[l.to] == l {
		delete(l.t.links, l.to)
	}
}

// giveUp drops what is queued when nothing was added for a while: nobody waits for it any more.
func (l *link) giveUp() {
	l.mu.Lock()
	var lost batch
	if time.Since(l.pushed) >= l.t.tm.quiet {
		lost = l.q.take(nil)
	}
	l.mu.Unlock()
	l.drop(dropExpired, lost.count)
}

// expire drops what has waited longer than limit for a connection. Late gossip is worse than none: a server that was cut off
// takes all others for dead, and would say so to all that it reaches again. What else was in it, such as new tags, comes with
// the exchange of state that a regained datacenter calls for.
func (l *link) expire(limit time.Duration) {
	l.mu.Lock()
	lost := l.q.dropBefore(time.Since(l.began) - limit)
	l.mu.Unlock()
	l.drop(dropExpired, lost)
}

// ways is what the book says about reaching the target.
func (l *link) ways() []Path {
	r := l.t.book.Load()
	if l.to.dc != l.t.own.DC {
		return r.Paths[l.to.dc]
	}
	return []Path{{Addr: r.Servers[l.to.node]}}
}

// waitRetry waits out a back-off, but not longer than until the book has other ways than those that just failed, or until
// another dial of the datacenter has worked. Two links must not wake each other without a pause: the shortest back-off stays.
func (l *link) waitRetry(ctx context.Context, d time.Duration, failed []Path) {
	timer := time.NewTimer(d)
	defer timer.Stop()
	var worked <-chan struct{}
	least := time.NewTimer(l.t.tm.backoffMin)
	defer least.Stop()
	next := l.t.cfg.Dialer.worked.at(l.to.dc)
	for {
		changed := l.t.book.Changed()
		if !slices.Equal(l.ways(), failed) {
			return
		}
		select {
		case <-changed:
		case <-least.C:
			worked = next // it may be closed already
		case <-worked:
			return
		case <-timer.C:
			return
		case <-ctx.Done():
			return
		}
	}
}

func (l *link) dial(ctx context.Context) (*tls.Conn, error) {
	l.mu.Lock()
	addr := l.addr
	l.mu.Unlock()
	return l.t.dial(ctx, l.to, addr, ProtoGossip, ProtoConsulPacket)
}

func (l *link) empty() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.q.bytes() == 0
}
