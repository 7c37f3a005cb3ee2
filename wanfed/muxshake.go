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

// A handshake that has taken this long may be ended to make room for another: a peer's ClientHello comes at once, or after a
// retransmission, the rest takes a round trip and, when many come at the same time, its turn at the processor.
const (
	helloGrace = 250 * time.Millisecond // from the first read until the ClientHello is there
	shakeGrace = time.Second            // from the first read until the end
)

// shaking is a handshake that is not finished.
type shaking struct {
	raw   net.Conn
	place *list.Element

	// Guarded by shakes.mu.
	source netip.Prefix
	began  time.Time // when its goroutine first ran: zero before
	heard  bool      // the ClientHello is there
	shed   bool      // ended to make room
}

// overdue is when sh may be ended to make room; ok is false when it has not begun.
func (s *shakes) overdue(sh *shaking) (at time.Time, ok bool) {
	if sh.heard {
		return sh.began.Add(s.shakeGrace), !sh.began.IsZero()
	}
	return sh.began.Add(s.helloGrace), !sh.began.IsZero()
}

// shakes is every unfinished handshake. When there are max, the next is let in as soon as one is finished or overdue. Of
// those that are overdue one without a ClientHello goes first, of them one of the source that has most, of these the oldest:
// a stranger who holds many takes the room from himself. A source is an address (IPv4) or a /64 (IPv6); all that came
// through one gateway are one, unless it says in a PROXY header whom it forwards.
type shakes struct {
	max                    int
	helloGrace, shakeGrace time.Duration
	freec                  chan struct{} // size 1: one was finished

	mu      sync.Mutex
	open    list.List // of *shaking, oldest first
	sources map[netip.Prefix]int
}

func newShakes(max int) *shakes {
	return &shakes{
		max: max, helloGrace: helloGrace, shakeGrace: shakeGrace,
		freec: make(chan struct{}, 1), sources: map[netip.Prefix]int{},
	}
}

// admit registers the handshake of raw, as soon as there is room; nil means that ctx ended. One goroutine calls it.
func (s *shakes) admit(ctx context.Context, raw net.Conn) *shaking {
	sh := &shaking{raw: raw, source: sourceOf(raw.RemoteAddr())}
	for {
		victim, wait, ok := s.tryAdmit(sh, time.Now())
		if victim != nil {
			victim.Close()
		}
		if ok {
			return sh
		}
		t := time.NewTimer(wait)
		select {
		case <-s.freec:
			t.Stop()
		case <-t.C:
		case <-ctx.Done():
			t.Stop()
			return nil
		}
	}
}

// tryAdmit registers sh if there is room, or the connection of a handshake to end in its place. Else it says when to ask
// again.
func (s *shakes) tryAdmit(sh *shaking, now time.Time) (victim net.Conn, wait time.Duration, ok bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.open.Len() >= s.max {
		old, next := s.overdueLocked(now)
		if old == nil {
			return nil, next, false
		}
		old.shed = true
		s.removeLocked(old)
		victim = old.raw
	}
	sh.place = s.open.PushBack(sh)
	s.sources[sh.source]++
	return victim, 0, true
}

// overdueLocked returns the handshake to end, or after how long there may be one.
func (s *shakes) overdueLocked(now time.Time) (worst *shaking, next time.Duration) {
	next = s.helloGrace // of those that have not begun
	for e := s.open.Front(); e != nil; e = e.Next() {
		sh := e.Value.(*shaking)
		at, ok := s.overdue(sh)
		switch {
		case !ok:
		case now.Before(at):
			next = min(next, at.Sub(now))
		case worst == nil, worst.heard && !sh.heard,
			worst.heard == sh.heard && s.sources[sh.source] > s.sources[worst.source]:
			worst = sh
		}
	}
	return worst, next
}

func (s *shakes) removeLocked(sh *shaking) {
	s.open.Remove(sh.place)
	sh.place = nil
	s.leaveLocked(sh.source)
}

func (s *shakes) leaveLocked(source netip.Prefix) {
	if s.sources[source]--; s.sources[source] == 0 {
		delete(s.sources, source)
	}
}

// begin notes that sh's goroutine runs: from now on a peer that sends nothing is at fault, not this machine.
func (s *shakes) begin(sh *shaking) {
	s.mu.Lock()
	defer s.mu.Unlock()
	sh.began = time.Now()
}

// move notes that sh is of another source than the one from which the connection came.
func (s *shakes) move(sh *shaking, source netip.Prefix) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if sh.shed { // it counts no more
		return
	}
	s.leaveLocked(sh.source)
	sh.source = source
	s.sources[source]++
}

// hear notes that the ClientHello is there.
func (s *shakes) hear(sh *shaking) {
	s.mu.Lock()
	defer s.mu.Unlock()
	sh.heard = true
}

// end notes that the handshake is over, and says whether it was ended to make room.
func (s *shakes) end(sh *shaking) (shed bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !sh.shed {
		s.removeLocked(sh)
		select {
		case s.freec <- struct{}{}:
		default:
		}
	}
	return sh.shed
}

// shedOne ends one overdue handshake, if there is any.
func (s *shakes) shedOne() {
	s.mu.Lock()
	old, _ := s.overdueLocked(time.Now())
	if old != nil {
		old.shed = true
		s.removeLocked(old)
	}
	s.mu.Unlock()
	if old != nil {
		old.raw.Close()
	}
}

func (s *shakes) len() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.open.Len()
}

// sourceOf is whose connections are counted together.
func sourceOf(a net.Addr) netip.Prefix {
	tcp, ok := a.(*net.TCPAddr)
	if !ok {
		return netip.Prefix{}
	}
	ip, bits := tcp.AddrPort().Addr().Unmap(), 64
	if ip.Is4() {
		bits = 32
	}
	p, _ := ip.Prefix(bits) // an error means no address: they are counted together
	return p
}
