// SPDX-License-Identifier: MPL-2.0

package wanfed

import (
	"context"
	"crypto/tls"
	"errors"
	"slices"
	"sync"
	"time"
)

// Bounds of how long the opening of a stream, an echo or a call may go unanswered before its connection is doubted. Between them it
// is two round trips of the path.
const (
	MinProbeTimeout = 150 * time.Millisecond
	MaxProbeTimeout = time.Second
)

// errSilentSession says that a session was found dead long before its keepalive would have found it.
var errSilentSession = errors.New("the session's peer, or a gateway on the way, stopped answering")

func (s *session) patience() time.Duration { return s.t.cfg.Dialer.patience(pathOf(s.conn)) }

// patience is two round trips of the way that a connection took: as its handshake says, or the measures since, if those are shorter,
// since a handshake may be slow for other reasons. That through an own gateway took two: the gateway connects to the next one meanwhile.
func (d *Dialer) patience(p *pathConn) time.Duration {
	two := p.rtt
	if !p.hop.Local {
		two *= 2
	}
	if m := d.paths.measured(p.dc, p.hop.Addr); m > 0 {
		two = min(two, 2*m)
	}
	return min(max(two, MinProbeTimeout), MaxProbeTimeout)
}

// test asks the peer of a session for a sign of life. When none comes in twice the session's patience, the next stream goes another
// way, and the channel is closed. A server that is merely slow, or waits for another one, answers; a path that is dead does not.
// Nothing happens after ctx ended.
func (s *session) test(ctx context.Context) <-chan struct{} {
	silent := make(chan struct{})
	alive := make(chan struct{})
	s.t.life.start(func(context.Context) {
		if _, err := s.mux.Ping(); err == nil { // it ends at last with muxWrite, or with the session
			close(alive)
		}
	})
	s.t.life.start(func(life context.Context) {
		settle := s.suspect()
		limit := time.NewTimer(2 * s.patience())
		defer limit.Stop()
		select {
		case <-limit.C:
			if s.t.forgetSession(s) {
				s.broke(errSilentSession)
			}
			close(silent)
			settle(false)
		case <-alive:
			settle(true)
		case <-ctx.Done():
			settle(false)
		case <-life.Done():
			settle(false)
		}
	})
	return silent
}

// elsewhere gives the ways to to, the one that c took last: it may be another one behind the first gateway.
func (d *Dialer) elsewhere(c *tls.Conn, to Target) []Path {
	hops, err := d.hops(to)
	p := pathOf(c)
	if err != nil || p == nil || to.DC == d.dc {
		return nil
	}
	hops = slices.Clone(hops)
	slices.SortStableFunc(hops, func(a, b Path) int {
		switch {
		case a.Addr == p.hop.Addr && b.Addr != p.hop.Addr:
			return 1
		case a.Addr != p.hop.Addr && b.Addr == p.hop.Addr:
			return -1
		}
		return 0
	})
	return hops
}

// tell makes the other links over the same first gateway ask for an echo now, once for each silence: a gateway that stands still is
// silent for all of them, and a quiet link would ask half a minute later.
func (lc *linkConn) tell(now time.Time) {
	if !lc.echo.isLate() || lc.told.After(lc.echo.last()) {
		return
	}
	lc.told = now
	lc.l.t.silent.note(lc.path.hop.Addr)
}

// doubt is called when an echo is late by twice the patience. It looks for another way, beside the connection, which goes on:
// the path is dead, or the peer is busy. What is found is given up when the echo has come meanwhile. A connection that never gave
// an echo has until the silence limit: one after the other to a peer that gives none would help nobody.
func (lc *linkConn) doubt(ctx context.Context, wg *sync.WaitGroup) {
	if lc.looking || !lc.echo.isLate() {
		return
	}
	to := Target{DC: lc.l.to.dc, Node: lc.l.to.node}
	hops := lc.l.t.cfg.Dialer.elsewhere(lc.c, to)
	if len(hops) == 0 {
		return
	}
	lc.looking, lc.doubted = true, true
	proto := lc.c.ConnectionState().NegotiatedProtocol
	wg.Go(func() {
		next := lc.l.t.dialBeside(ctx, lc.c, to, hops, proto, "connection that gives no echo is replaced")
		if next != nil && !lc.echo.isLate() {
			closeConn(next)
			next = nil
		}
		lc.found <- next
	})
}
