// SPDX-License-Identifier: MPL-2.0

package wanfed

import (
	"context"
	"crypto/tls"
	"log/slog"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/wanfed/wanfed/internal/backoff"
)

// link sends packets to one target: any server of another datacenter, or one
// server of the local datacenter. Senders push packets into its queue and never
// wait. Its goroutine, run, owns the connection. It dials when a packet is
// queued, and dials again after a failure. An unused link retires.
type link struct {
	t        *Tunnel
	to       target
	counters [PoolLAN + 1]*counters // by pool; nil for pools that are never pushed
	wake     chan struct{}          // size 1: no push is missed
	began    time.Time

	mu       sync.Mutex
	queue    sendQueue
	lastPush time.Time
	addr     string // of the target, as memberlist passed it last; only in the local datacenter
	retired  bool   // takes no more packets
	isDown   bool   // the last event was a failure
	status   LinkStatus
}

// newLink is called with t.mu held.
func newLink(t *Tunnel, to target) *link {
	l := &link{
		t: t, to: to, wake: make(chan struct{}, 1), began: time.Now(),
		queue: sendQueue{max: t.limits.queueBytes}, addr: to.addr, status: LinkStatus{DC: to.dc, Node: to.node},
	}
	l.counters[PoolWAN] = t.trafficLocked(trafficKey{PoolWAN, to.dc})
	if to.dc == t.self.DC {
		l.counters[PoolLAN] = t.trafficLocked(trafficKey{PoolLAN, to.dc})
	}
	return l
}

// push queues a copy of packet for node and returns at once. It returns false
// if the link has retired.
func (l *link) push(pool Pool, node, addr string, packet []byte, now time.Time) bool {
	l.mu.Lock()
	if l.retired {
		l.mu.Unlock()
		return false
	}
	first := l.queue.bytes() == 0 // otherwise run has been woken already
	dropped := l.queue.push(pool, node, packet, now.Sub(l.began))
	l.lastPush = now
	if node != "" && addr != "" { // without a node, memberlist may have invented the address
		l.addr = addr
	}
	l.mu.Unlock()
	if dropped != (frameCounts{}) {
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

// drop counts dropped packets.
func (l *link) drop(why dropReason, n frameCounts) {
	for pool, n := range n {
		if n > 0 && l.counters[pool] != nil {
			l.counters[pool].drop(why, n)
		}
	}
}

// take empties the queue. spare becomes the buffer of the queue.
func (l *link) take(spare []byte) batch {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.queue.take(spare)
}

// run lives from the link's first packet until it retires or ctx ends.
func (l *link) run(ctx context.Context) {
	b := backoff.Backoff{Min: l.t.limits.backoffMin, Max: l.t.limits.backoffMax}
	failed := false // a dial or a connection failed; packets may wait for the first dial
	for l.waitForWork(ctx) {
		paths := l.paths()
		conn, err := l.dial(ctx)
		if err == nil {
			if failed {
				l.dropStale(l.t.limits.maxQueueAge)
			}
			var stable bool
			if stable, err = l.use(ctx, conn); stable {
				b.Reset()
			}
		}
		if ctx.Err() != nil {
			break
		}
		if err == nil {
			if l.retireIfEmpty() {
				return
			}
			continue
		}
		failed = true
		l.recordFailure(err)
		l.dropUnwanted()
		l.waitRetry(ctx, b.Next(), paths)
	}
	l.retire()
}

// waitForWork waits until a packet is queued. It returns false if the link must
// end.
func (l *link) waitForWork(ctx context.Context) bool {
	idle := time.NewTimer(l.t.limits.idleAfter)
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
			if l.retireIfEmpty() {
				return false
			}
		}
	}
}

// retire drops the queued packets and removes the link from the tunnel.
func (l *link) retire() {
	l.t.mu.Lock()
	l.removeLocked()
	l.t.mu.Unlock()
	l.mu.Lock()
	l.retired = true
	lost := l.queue.take(nil)
	l.mu.Unlock()
	l.drop(dropExpired, lost.count)
}

// retireIfEmpty removes the link from the tunnel unless a packet is queued.
func (l *link) retireIfEmpty() bool {
	l.t.mu.Lock()
	defer l.t.mu.Unlock()
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.queue.bytes() > 0 {
		return false
	}
	l.retired = true
	l.removeLocked()
	if l.isDown {
		delete(l.t.seen, l.to) // the next success is logged as a first contact
	}
	return true
}

// removeLocked removes the link from the tunnel. It is called with t.mu held.
func (l *link) removeLocked() {
	if l.t.links[l.to] == l {
		delete(l.t.links, l.to)
	}
}

// dropUnwanted drops the queued packets if no packet was pushed for idleAfter.
func (l *link) dropUnwanted() {
	l.mu.Lock()
	var lost batch
	if time.Since(l.lastPush) >= l.t.limits.idleAfter {
		lost = l.queue.take(nil)
	}
	l.mu.Unlock()
	l.drop(dropExpired, lost.count)
}

// dropStale drops packets that waited longer than limit for a connection. A
// disconnected server has queued messages that report all other servers as
// dead. These messages must not be sent after the server is reconnected. Other
// state in the dropped packets, such as new tags, is exchanged when the
// datacenter is reachable again.
func (l *link) dropStale(limit time.Duration) {
	l.mu.Lock()
	lost := l.queue.dropBefore(time.Since(l.began) - limit)
	l.mu.Unlock()
	l.drop(dropExpired, lost)
}

// paths returns the paths to the target in the address book.
func (l *link) paths() []Path {
	b := l.t.book.Load()
	if l.to.dc != l.t.self.DC {
		return b.Paths[l.to.dc]
	}
	return []Path{{Addr: b.Servers[l.to.node]}}
}

// waitRetry waits for d. It returns early when the address book has other paths
// than the paths that just failed. After backoffMin, it also returns early when
// another dial of the datacenter succeeds. The minimum prevents a loop in which
// two links wake each other.
func (l *link) waitRetry(ctx context.Context, d time.Duration, failed []Path) {
	timer, least := time.NewTimer(d), time.NewTimer(l.t.limits.backoffMin)
	defer timer.Stop()
	defer least.Stop()
	reachable := l.t.cfg.Dialer.reachable.Wait(l.to.dc)
	var wake <-chan struct{} // reachable, once backoffMin has passed
	for {
		changed := l.t.book.Changed()
		if !slices.Equal(l.paths(), failed) {
			return
		}
		select {
		case <-changed:
		case <-least.C:
			wake = reachable
		case <-wake:
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
	return l.t.dialTarget(ctx, l.to, addr, ProtoGossip, ProtoConsulPacket)
}

func (l *link) empty() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.queue.bytes() == 0
}

// recordFailure records err and logs it if the link was up.
func (l *link) recordFailure(err error) {
	l.mu.Lock()
	gateway, wasDown := l.status.Path.Addr, l.isDown
	l.isDown = true
	l.status.ConnectedSince, l.status.RTT = time.Time{}, 0
	l.status.LastError, l.status.LastErrorAt = explain(err), time.Now()
	l.mu.Unlock()
	if wasDown {
		l.t.log.Debug("gossip link still down", "peer", l.to.String(), "err", err)
	} else {
		l.t.log.Warn("gossip link down", "peer", l.to.String(), "gateway", gateway, "err", explain(err))
	}
}

// recordUp records that the peer responded. It logs at Info only after a
// failure and at the first contact, because the links of a large federation
// open and close with their traffic.
func (l *link) recordUp(p *pathConn, since time.Time, rtt time.Duration) {
	first := l.t.firstContact(l.to)
	l.mu.Lock()
	level := slog.LevelDebug
	if l.isDown || first {
		level = slog.LevelInfo
	}
	l.isDown = false
	l.status.ConnectedSince, l.status.RTT = since, rtt
	l.mu.Unlock()
	l.t.log.Log(context.Background(), level, "gossip link up",
		"peer", l.to.String(), "gateway", p.path.Addr, "remote", p.addr, "rtt", rtt)
}

// recordClosed records that the connection was closed without a fault.
func (l *link) recordClosed() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.status.ConnectedSince, l.status.RTT = time.Time{}, 0
}

// recordPath records the path and the protocol of a new connection. The peer
// has not responded on the connection yet.
func (l *link) recordPath(p *pathConn, alpn string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.status.Path, l.status.Protocol = p.path, alpn
	l.status.ConnectedSince, l.status.RTT = time.Time{}, 0
}

func (l *link) snapshot() LinkStatus {
	l.mu.Lock()
	defer l.mu.Unlock()
	s := l.status
	s.Queued = l.queue.count.total()
	return s
}

func (l *link) lastUse() (at time.Time, connected bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.lastPush, !l.status.ConnectedSince.IsZero()
}

// linkUseTimes caches, for one second, the time of the last use of each
// connected link.
type linkUseTimes struct {
	mu    sync.Mutex
	at    time.Time
	times []time.Time // latest first
}

// linksUsedAfter reports whether at least n connected links were used after l.
func (t *Tunnel) linksUsedAfter(l *link, n int, now time.Time) bool {
	last, _ := l.lastUse()
	u := &t.linkUses
	u.mu.Lock()
	defer u.mu.Unlock()
	if u.at.IsZero() || now.Sub(u.at) >= time.Second {
		u.at, u.times = now, t.connectedLinkUses()
	}
	return len(u.times) >= n && u.times[n-1].After(last)
}

// connectedLinkUses returns the time of the last use of each connected link,
// latest first.
func (t *Tunnel) connectedLinkUses() (times []time.Time) {
	t.mu.RLock()
	links := slices.Collect(maps.Values(t.links))
	t.mu.RUnlock()
	for _, l := range links {
		if at, connected := l.lastUse(); connected {
			times = append(times, at)
		}
	}
	slices.SortFunc(times, func(a, b time.Time) int { return b.Compare(a) })
	return times
}
