// SPDX-License-Identifier: MPL-2.0

package wanfed

import (
	"context"
	"net"
	"net/netip"
	"slices"
	"sync"
	"time"

	"github.com/wanfed/wanfed/internal/backoff"
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
	raw net.Conn

	// Guarded by handshakeLimit.mu.
	source    netip.Prefix
	started   time.Time // when the goroutine of the handshake first ran; zero: not yet
	helloSeen bool      // the ClientHello has arrived
	shed      bool      // closed to admit another handshake
}

// crowd is the number of unfinished handshakes from which a source gives way
// without a grace period to a source with fewer.
const crowd = 64

// maxPerSource is the number of unfinished handshakes of one source from which
// each new one sheds one that is overdue. Such a source has helloGrace for the
// whole handshake. It bounds the memory of a flood, about 50 KB per unfinished
// handshake, below the limit of all handshakes.
const maxPerSource = 128

// handshakeLimit bounds unfinished handshakes. At the limit, the next handshake
// starts when another handshake ends or is shed. If a source has more than crowd
// handshakes, and the most of all, its oldest one is shed for the handshake of
// another source. Otherwise only an overdue handshake is shed, in this order of
// preference: a handshake without a ClientHello, a handshake of the source with
// the most handshakes, the oldest handshake. A client that opens many
// connections therefore displaces its own connections.
//
// A source is an IPv4 address or an IPv6 /64. All connections through one
// gateway have one source, unless the gateway sends PROXY headers. Until its
// header was read, a connection counts for the gateway.
type handshakeLimit struct {
	max               int
	helloGrace, grace time.Duration
	released          chan struct{} // size 1: a handshake has ended

	mu        sync.Mutex
	open      []*handshake         // oldest first
	perSource map[netip.Prefix]int // number of handshakes in open
}

func newHandshakeLimit(max int) *handshakeLimit {
	return &handshakeLimit{
		max: max, helloGrace: helloGrace, grace: handshakeGrace, released: make(chan struct{}, 1),
		perSource: map[netip.Prefix]int{},
	}
}

// acquire waits for a free slot and registers the handshake of raw. It returns
// nil if ctx ends first. Only one goroutine calls acquire.
func (l *handshakeLimit) acquire(ctx context.Context, raw net.Conn) *handshake {
	hs := &handshake{raw: raw, source: sourceOf(raw.RemoteAddr())}
	for ctx.Err() == nil {
		wait := l.tryAcquire(hs)
		if wait == 0 {
			return hs
		}
		backoff.Sleep(ctx, wait, l.released)
	}
	return nil
}

// tryAcquire registers hs and returns 0 if a slot is free, or if an overdue
// handshake can be shed. Otherwise tryAcquire returns the time to wait.
func (l *handshakeLimit) tryAcquire(hs *handshake) (wait time.Duration) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if len(l.open) >= l.max {
		if wait = l.shedCrowdLocked(hs.source); wait != 0 {
			wait = l.shedLocked(netip.Prefix{})
		}
	}
	if wait == 0 {
		l.open = append(l.open, hs)
		l.enterLocked(hs.source)
	}
	return wait
}

// shed sheds one overdue handshake, if there is any.
func (l *handshakeLimit) shed() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.shedLocked(netip.Prefix{})
}

// enterLocked counts a handshake of source. Above maxPerSource, it sheds an overdue
// handshake of source.
func (l *handshakeLimit) enterLocked(source netip.Prefix) {
	if l.perSource[source]++; l.perSource[source] > maxPerSource && source.IsValid() {
		l.shedLocked(source)
	}
}

// shedLocked sheds one overdue handshake of any source, or, if source is valid,
// one of source that is older than helloGrace. It closes the connection and
// returns 0. If no handshake is overdue, shedLocked returns the time until one may
// be.
func (l *handshakeLimit) shedLocked(source netip.Prefix) (wait time.Duration) {
	var worst *handshake
	now := time.Now()
	wait = l.helloGrace // for handshakes that have not started
	for _, hs := range l.open {
		grace := l.helloGrace
		if hs.helloSeen && !source.IsValid() {
			grace = l.grace
		}
		at := hs.started.Add(grace)
		switch {
		case hs.started.IsZero(), source.IsValid() && hs.source != source:
		case now.Before(at):
			wait = min(wait, at.Sub(now))
		case worst == nil, worst.helloSeen && !hs.helloSeen,
			worst.helloSeen == hs.helloSeen && l.perSource[hs.source] > l.perSource[worst.source]:
			worst = hs
		}
	}
	if worst == nil {
		return wait
	}
	l.closeLocked(worst)
	return 0
}

// shedCrowdLocked sheds the oldest handshake of the source with the most
// handshakes, if these are more than crowd and more than those of newcomer. It
// returns 0 if it has shed one.
func (l *handshakeLimit) shedCrowdLocked(newcomer netip.Prefix) (wait time.Duration) {
	wait = l.helloGrace
	var source netip.Prefix
	most := max(crowd, l.perSource[newcomer]+1)
	for s, n := range l.perSource {
		if n > most {
			source, most, wait = s, n, 0
		}
	}
	if wait == 0 {
		l.closeLocked(l.open[slices.IndexFunc(l.open, func(hs *handshake) bool { return hs.source == source })])
	}
	return wait
}

// closeLocked sheds hs.
func (l *handshakeLimit) closeLocked(hs *handshake) {
	hs.shed = true
	l.removeLocked(hs)
	hs.raw.Close()
}

func (l *handshakeLimit) removeLocked(hs *handshake) {
	i := slices.Index(l.open, hs)
	l.open = slices.Delete(l.open, i, i+1)
	l.leaveLocked(hs.source)
}

func (l *handshakeLimit) leaveLocked(source netip.Prefix) {
	if l.perSource[source]--; l.perSource[source] == 0 {
		delete(l.perSource, source)
	}
}

// start records that the goroutine of hs runs. Any later delay is caused by the
// peer and not by this machine.
func (l *handshakeLimit) start(hs *handshake) {
	l.mu.Lock()
	defer l.mu.Unlock()
	hs.started = time.Now()
}

// setSource replaces the source of hs, which was the remote address, by the
// source in a PROXY header.
func (l *handshakeLimit) setSource(hs *handshake, source netip.Prefix) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if !hs.shed {
		l.leaveLocked(hs.source)
		l.enterLocked(source)
	}
	hs.source = source
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

func (l *handshakeLimit) len() int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return len(l.open)
}

// sourceOf returns the network that counts as one source. Connections without
// an IP address share the zero Prefix.
func sourceOf(a net.Addr) netip.Prefix {
	tcp, ok := a.(*net.TCPAddr)
	if !ok {
		return netip.Prefix{}
	}
	ip, bits := tcp.AddrPort().Addr().Unmap(), 64
	if ip.Is4() {
		bits = 32
	}
	p, _ := ip.Prefix(bits) // fails only without an IP address
	return p
}
