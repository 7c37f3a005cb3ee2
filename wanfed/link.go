// SPDX-License-Identifier: MPL-2.0

package wanfed

import (
	"context"
	"crypto/tls"
	"hash/crc32"
	"log/slog"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/wanfed/wanfed/internal/backoff"
)

// link sends packets to one target: any server of another datacenter, or one
// server of the local datacenter. Senders push packets into the queue of the
// link and never wait. The goroutine run owns the connection. It dials when a
// packet is queued, and after a failure. In a large federation it may first borrow
// a connection that the target has dialed: see borrow. An unused link retires: it
// leaves the tunnel and accepts no more packets.
type link struct {
	t        *Tunnel
	to       target
	counters [PoolLAN + 1]*counters // by pool; nil for pools that the target is not in
	wake     chan struct{}          // size 1: receives a value after a push into the empty queue
	began    time.Time
	pair     uint32 // hash of the two datacenters, equal at both ends

	mu       sync.Mutex
	queue    sendQueue
	lastPush time.Time
	addr     string // last address of the target from memberlist; only in the local datacenter
	retired  bool
	isDown   bool // the last event was a failure
	lost     bool // a connection has failed since the last echo
	status   LinkStatus
}

// newLink is called with t.mu held.
func newLink(t *Tunnel, to target) *link {
	l := &link{
		t: t, to: to, wake: make(chan struct{}, 1), began: time.Now(),
		pair:  hashPair(t.self.DC, to.dc),
		queue: sendQueue{max: t.limits.queueBytes}, addr: to.addr, status: LinkStatus{DC: to.dc, Node: to.node},
	}
	l.counters[PoolWAN] = t.trafficLocked(trafficKey{PoolWAN, to.dc})
	if to.dc == t.self.DC {
		l.counters[PoolLAN] = t.trafficLocked(trafficKey{PoolLAN, to.dc})
	}
	return l
}

// hashPair returns a hash of two datacenters, independent of their order.
func hashPair(a, b string) uint32 {
	return crc32.ChecksumIEEE([]byte(min(a, b) + " " + max(a, b)))
}

// push queues a copy of packet for node and returns at once. It returns false
// if the link has retired.
func (l *link) push(pool Pool, node, addr string, packet []byte, now time.Time) bool {
	l.mu.Lock()
	if l.retired {
		l.mu.Unlock()
		return false
	}
	wasEmpty := l.queue.bytes() == 0 // otherwise an earlier push has woken run
	dropped := l.queue.push(pool, node, packet, now.Sub(l.began))
	l.lastPush = now
	if node != "" && addr != "" { // without a node, memberlist may have invented the address
		l.addr = addr
	}
	l.mu.Unlock()
	l.drop(dropQueueFull, dropped)
	if wasEmpty {
		select {
		case l.wake <- struct{}{}:
		default:
		}
	}
	return true
}

// drop counts dropped packets.
func (l *link) drop(why dropReason, packets frameCounts) {
	for pool, n := range packets {
		if n > 0 {
			l.counters[pool].drop(why, n)
		}
	}
}

// take empties the queue. The argument spare becomes the buffer of the queue.
func (l *link) take(spare []byte) batch {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.queue.take(spare)
}

// run dials and sends until the link retires or ctx ends.
func (l *link) run(ctx context.Context) {
	retry := backoff.Backoff{Min: l.t.limits.backoffMin}
	failed := false // a dial or a connection has failed; packets that wait for the first dial are not stale
	own := false    // the link has had a connection of its own
	for l.waitForPacket(ctx) {
		var offered <-chan struct{}
		if !own && l.mayBorrow() {
			offered = l.t.offered.Wait(l.to.dc)
			l.borrow(ctx, !failed)
		}
		paths := l.paths()
		conn, err := l.dial(ctx)
		if err == nil {
			own = true
			if failed {
				l.dropStale(l.t.limits.maxQueueAge)
			}
			var stable bool
			if stable, err = l.use(ctx, conn); stable {
				retry.Reset()
			}
		}
		switch {
		case ctx.Err() != nil:
			// waitForPacket returns false.
		case err == nil:
			if l.retire(false) {
				return
			}
		default:
			failed = true
			l.recordLoss()
			l.recordFailure(err)
			l.dropStale(l.t.limits.idleAfter) // an unused link must not dial indefinitely
			retry.Max = l.t.limits.backoffMax * time.Duration(l.t.echoRounds())
			l.waitRetry(ctx, retry.Next(), paths, offered)
		}
	}
	l.retire(true)
}

// waitForPacket waits until a packet is queued. It returns false if the link
// has retired or ctx has ended.
func (l *link) waitForPacket(ctx context.Context) bool {
	for ctx.Err() == nil && l.isEmpty() {
		woken := backoff.Sleep(ctx, l.t.limits.idleAfter, l.wake)
		if !woken && ctx.Err() == nil && l.retire(false) {
			return false
		}
	}
	return ctx.Err() == nil
}

// retire removes the link from the tunnel. If a packet is queued, retire drops
// the packet if force is true, and otherwise does nothing and returns false.
func (l *link) retire(force bool) bool {
	l.t.mu.Lock()
	defer l.t.mu.Unlock()
	l.mu.Lock()
	defer l.mu.Unlock()
	switch {
	case l.retired:
		return true
	case !force && l.queue.bytes() > 0:
		return false
	}
	l.drop(dropExpired, l.queue.take(nil).count)
	l.retired = true
	delete(l.t.links, l.to)
	if l.isDown {
		delete(l.t.seen, l.to) // the next success is logged as a first contact
	}
	return true
}

// dropStale drops packets that have waited longer than limit for a connection.
// A disconnected server has queued messages that report all other servers as
// dead, and must not send these messages when it is connected again. The
// dropped packets may also contain state, such as new tags. The gossip pools
// exchange this state again later.
func (l *link) dropStale(limit time.Duration) {
	l.mu.Lock()
	dropped := l.queue.dropBefore(time.Since(l.began) - limit)
	l.mu.Unlock()
	l.drop(dropExpired, dropped)
}

// paths returns the paths to the target in the address book.
func (l *link) paths() []Path {
	b := l.t.book.Load()
	if l.to.dc != l.t.self.DC {
		return b.Paths[l.to.dc]
	}
	return []Path{{Addr: b.Servers[l.to.node]}}
}

// waitRetry waits for d. It returns early when the address book lists other
// paths than failed, the paths of the failed dial, and when it receives from
// offered, which may be nil. After backoffMin it also returns early when another
// dial of the datacenter succeeds. The minimum prevents a loop in which two links
// wake each other.
func (l *link) waitRetry(ctx context.Context, d time.Duration, failed []Path, offered <-chan struct{}) {
	timer, least := time.NewTimer(d), time.NewTimer(l.t.limits.backoffMin)
	defer timer.Stop()
	defer least.Stop()
	reachable := l.t.cfg.Dialer.reachable.Wait(l.to.dc)
	var wake <-chan struct{} // reachable, after backoffMin has passed
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
		case <-offered:
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

func (l *link) isEmpty() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.queue.bytes() == 0
}

// recordFailure records err. It logs at Warn only if the link was up.
func (l *link) recordFailure(err error) {
	l.mu.Lock()
	gateway, wasDown := l.status.Path.Addr, l.isDown
	l.isDown = true
	l.status.ConnectedSince, l.status.RTT, l.status.UnansweredSince = time.Time{}, 0, time.Time{}
	l.status.LastError, l.status.LastErrorAt = explain(err), time.Now()
	l.mu.Unlock()
	if wasDown {
		l.t.log.Debug("gossip link still down", "peer", l.to.String(), "err", err)
	} else {
		l.t.log.Warn("gossip link down", "peer", l.to.String(), "gateway", gateway, "err", explain(err))
	}
}

// recordLoss records that packets may be lost, because a connection or a dial has
// failed.
func (l *link) recordLoss() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.lost = true
}

// recordUp records that the peer responded. It logs at Info only after a
// failure and at the first contact, because many links of a large federation
// open and close with their traffic.
func (l *link) recordUp(p *pathConn, since time.Time, rtt time.Duration) {
	l.mu.Lock()
	known := l.status.ConnectedSince.Equal(since)
	if known { // an echo of a connection that is up
		l.status.RTT = rtt
	}
	l.mu.Unlock()
	if known {
		return
	}
	first := l.t.firstContact(l.to)
	l.mu.Lock()
	level := slog.LevelDebug
	if l.isDown || first {
		level = slog.LevelInfo
	}
	reconnected := l.lost && l.to.dc != l.t.self.DC
	l.isDown, l.lost = false, false
	l.status.ConnectedSince, l.status.RTT = since, rtt
	l.mu.Unlock()
	if reconnected && l.t.cfg.Reconnected != nil {
		l.t.cfg.Reconnected(l.to.dc)
	}
	l.t.log.Log(context.Background(), level, "gossip link up",
		"peer", l.to.String(), "gateway", p.path.Addr, "remote", p.addr, "rtt", rtt)
}

// recordPath records the path and the protocol of a connection, before the
// first response of the peer and after the end of the connection.
func (l *link) recordPath(p *pathConn, alpn string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.status.Path, l.status.Protocol = p.path, alpn
	l.status.ConnectedSince, l.status.RTT, l.status.UnansweredSince = time.Time{}, 0, time.Time{}
}

// recordUnanswered records the time of the first echo request without an echo.
// A zero time means that the last request was answered.
func (l *link) recordUnanswered(since time.Time) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.status.UnansweredSince = since
}

func (l *link) snapshot() LinkStatus {
	l.mu.Lock()
	defer l.mu.Unlock()
	s := l.status
	s.Queued = l.queue.count.total()
	return s
}

// lastUse returns the time of the last push.
func (l *link) lastUse() (at time.Time, connected bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.lastPush, !l.status.ConnectedSince.IsZero()
}

// linkCount returns the number of links.
func (t *Tunnel) linkCount() int {
	t.mu.RLock()
	defer t.mu.RUnlock()
	return len(t.links)
}

// linkUseTimes caches the last uses of all connected links for one second.
type linkUseTimes struct {
	mu    sync.Mutex
	at    time.Time   // when times was computed
	times []time.Time // latest first
}

// linksUsedAfter reports whether at least n connected links were used after l.
func (t *Tunnel) linksUsedAfter(l *link, n int, now time.Time) bool {
	u := &t.linkUses
	u.mu.Lock()
	defer u.mu.Unlock()
	if now.Sub(u.at) >= time.Second {
		u.at, u.times = now, nil
		t.mu.RLock()
		links := slices.Collect(maps.Values(t.links))
		t.mu.RUnlock()
		for _, other := range links {
			if at, connected := other.lastUse(); connected {
				u.times = append(u.times, at)
			}
		}
		slices.SortFunc(u.times, func(a, b time.Time) int { return b.Compare(a) })
	}
	last, _ := l.lastUse()
	return len(u.times) >= n && u.times[n-1].After(last)
}
