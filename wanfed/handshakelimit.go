// SPDX-License-Identifier: MPL-2.0

package wanfed

import (
	"container/list"
	"context"
	"net"
	"net/netip"
	"sync"
	"time"
)

// Grace periods after which a handshake may be shed to admit another handshake.
// A ClientHello arrives at once, or after a retransmission. The rest of the
// handshake takes a round trip and, under load, processor time.
const (
	helloGrace     = 250 * time.Millisecond // from the first read to the ClientHello
	handshakeGrace = time.Second            // from the first read to the end
)

// handshake is an unfinished TLS handshake.
type handshake struct {
	raw     net.Conn
	element *list.Element

	// Guarded by handshakeLimit.mu.
	source    netip.Prefix
	started   time.Time // when its goroutine first ran; zero: not yet
	helloSeen bool      // the ClientHello has arrived
	shed      bool      // closed to admit another handshake
}

// handshakeLimit bounds unfinished handshakes. At the limit max, the next
// handshake starts when another handshake ends or is overdue. Among overdue
// handshakes, a handshake without a ClientHello is shed first. Next is a
// handshake of the source with the most handshakes, then the oldest handshake.
// A client that opens many connections therefore displaces its own connections.
// A source is an IPv4 address or an IPv6 /64. All connections through one
// gateway are one source, unless the gateway sends PROXY headers.
type handshakeLimit struct {
	max               int
	helloGrace, grace time.Duration
	released          chan struct{} // size 1: a handshake has ended

	mu      sync.Mutex
	open    list.List // of *handshake, oldest first
	sources map[netip.Prefix]int
}

func newHandshakeLimit(max int) *handshakeLimit {
	return &handshakeLimit{
		max: max, helloGrace: helloGrace, grace: handshakeGrace,
		released: make(chan struct{}, 1), sources: map[netip.Prefix]int{},
	}
}

// overdue returns the time at which hs may be shed. ok is false if hs has not
// started.
func (l *handshakeLimit) overdue(hs *handshake) (at time.Time, ok bool) {
	grace := l.helloGrace
	if hs.helloSeen {
		grace = l.grace
	}
	return hs.started.Add(grace), !hs.started.IsZero()
}

// acquire waits for a free slot and registers the handshake of raw. It returns
// nil if ctx ends first. Only one goroutine calls acquire.
func (l *handshakeLimit) acquire(ctx context.Context, raw net.Conn) *handshake {
	hs := &handshake{raw: raw, source: sourceOf(raw.RemoteAddr())}
	for {
		victim, wait, ok := l.tryAcquire(hs, time.Now())
		if victim != nil {
			victim.Close()
		}
		if ok {
			return hs
		}
		t := time.NewTimer(wait)
		select {
		case <-l.released:
			t.Stop()
		case <-t.C:
		case <-ctx.Done():
			t.Stop()
			return nil
		}
	}
}

// tryAcquire registers hs if a slot is free, or in the slot of victim. The
// caller closes the connection of victim. Otherwise tryAcquire returns the time
// to wait.
func (l *handshakeLimit) tryAcquire(hs *handshake, now time.Time) (victim net.Conn, wait time.Duration, ok bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.open.Len() >= l.max {
		old, next := l.overdueLocked(now)
		if old == nil {
			return nil, next, false
		}
		victim = l.shedLocked(old)
	}
	hs.element = l.open.PushBack(hs)
	l.sources[hs.source]++
	return victim, 0, true
}

// overdueLocked returns the handshake to shed, or the time until a handshake
// may be overdue.
func (l *handshakeLimit) overdueLocked(now time.Time) (worst *handshake, next time.Duration) {
	next = l.helloGrace // for handshakes that have not started
	for e := l.open.Front(); e != nil; e = e.Next() {
		hs := e.Value.(*handshake)
		at, ok := l.overdue(hs)
		switch {
		case !ok:
		case now.Before(at):
			next = min(next, at.Sub(now))
		case worst == nil, worst.helloSeen && !hs.helloSeen,
			worst.helloSeen == hs.helloSeen && l.sources[hs.source] > l.sources[worst.source]:
			worst = hs
		}
	}
	return worst, next
}

func (l *handshakeLimit) shedLocked(hs *handshake) net.Conn {
	hs.shed = true
	l.removeLocked(hs)
	return hs.raw
}

func (l *handshakeLimit) removeLocked(hs *handshake) {
	l.open.Remove(hs.element)
	hs.element = nil
	l.leaveLocked(hs.source)
}

func (l *handshakeLimit) leaveLocked(source netip.Prefix) {
	if l.sources[source]--; l.sources[source] == 0 {
		delete(l.sources, source)
	}
}

// start records that the goroutine of hs runs. A later delay is caused by the
// peer and not by this machine.
func (l *handshakeLimit) start(hs *handshake) {
	l.mu.Lock()
	defer l.mu.Unlock()
	hs.started = time.Now()
}

// setSource replaces the source of hs. The source was derived from the address
// of the connection.
func (l *handshakeLimit) setSource(hs *handshake, source netip.Prefix) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if hs.shed { // hs is not counted any more
		return
	}
	l.leaveLocked(hs.source)
	hs.source = source
	l.sources[source]++
}

// noteHello records that the ClientHello has arrived.
func (l *handshakeLimit) noteHello(hs *handshake) {
	l.mu.Lock()
	defer l.mu.Unlock()
	hs.helloSeen = true
}

// end records that the handshake has ended, and reports whether it was shed.
func (l *handshakeLimit) end(hs *handshake) (shed bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if !hs.shed {
		l.removeLocked(hs)
		select {
		case l.released <- struct{}{}:
		default:
		}
	}
	return hs.shed
}

// shedOne sheds one overdue handshake, if there is any.
func (l *handshakeLimit) shedOne() {
	var victim net.Conn
	l.mu.Lock()
	if old, _ := l.overdueLocked(time.Now()); old != nil {
		victim = l.shedLocked(old)
	}
	l.mu.Unlock()
	if victim != nil {
		victim.Close()
	}
}

func (l *handshakeLimit) len() int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.open.Len()
}

// sourceOf returns the network whose connections are counted together.
func sourceOf(a net.Addr) netip.Prefix {
	tcp, ok := a.(*net.TCPAddr)
	if !ok {
		return netip.Prefix{}
	}
	ip, bits := tcp.AddrPort().Addr().Unmap(), 64
	if ip.Is4() {
		bits = 32
	}
	p, _ := ip.Prefix(bits) // fails without an address; connections without an address share one source
	return p
}
