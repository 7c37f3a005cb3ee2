// SPDX-License-Identifier: MPL-2.0

package wanfed

import (
	"context"
	"crypto/tls"
	"math/rand/v2"
	"slices"
	"time"

	"github.com/wanfed/wanfed/internal/backoff"
)

// When many datacenters start together, handshakes are most of the work, and each
// two datacenters need two links. A link therefore borrows a connection that the
// other datacenter has dialed, and dials its own some minutes later. Only links borrow
// that have had no connection of their own, and only beyond limits.echoesPerRound
// links: the state of the paths of a small federation is known at once, from the links.

const (
	// borrowWait is the longest wait for a connection that the other datacenter
	// dials. Without one, this end dials.
	borrowWait = 10 * time.Second
	// A link returns a connection after borrowMin to borrowMax.
	borrowMin, borrowMax = 2 * time.Minute, 4 * time.Minute
)

// offer records pc, an accepted ProtoDuplex connection, for the link to the datacenter
// of its peer, until end is called.
func (t *Tunnel) offer(pc *packetConn) (end func()) {
	dc := pc.peer.DC
	pc.markReceived(time.Now())
	t.mu.Lock()
	t.accepted[dc] = append(t.accepted[dc], pc)
	t.mu.Unlock()
	t.offered.Notify(dc)
	return func() {
		close(pc.ended)
		t.mu.Lock()
		defer t.mu.Unlock()
		t.accepted[dc] = slices.DeleteFunc(t.accepted[dc], func(other *packetConn) bool { return other == pc })
		if len(t.accepted[dc]) == 0 {
			delete(t.accepted, dc)
		}
	}
}

// newestAccepted returns the newest connection from dc, or nil.
func (t *Tunnel) newestAccepted(dc string) *packetConn {
	t.mu.RLock()
	defer t.mu.RUnlock()
	if all := t.accepted[dc]; len(all) > 0 {
		return all[len(all)-1]
	}
	return nil
}

// mayBorrow reports whether the link may borrow: one of many links to another
// datacenter, in its first minutes.
func (l *link) mayBorrow() bool {
	return l.to.dc != l.t.self.DC && l.to.node == "" && l.t.linkCount() > l.t.limits.echoesPerRound &&
		time.Since(l.began) < borrowMax
}

// borrow sends the queued packets over a connection that the other datacenter has
// dialed. It returns when this end should dial. If wait is true, one of the two ends
// waits for the other to dial. The ends agree which one that is.
func (l *link) borrow(ctx context.Context, wait bool) {
	t, dc := l.t, l.to.dc
	offered := t.offered.Wait(dc)
	pc := t.newestAccepted(dc)
	if wait = wait && l.pair%2 == 0 == (t.self.DC < dc); pc == nil && wait {
		backoff.Sleep(ctx, borrowWait, offered)
		pc = t.newestAccepted(dc)
	}
	if pc == nil || ctx.Err() != nil {
		return
	}
	lc := &linkConn{l: l, c: pc.c.(*tls.Conn), began: time.Now()}
	until := time.NewTimer(borrowMin + rand.N(borrowMax-borrowMin))
	defer until.Stop()
	// The peer sends echo requests at its interval, which is about that of this end.
	untilSilent := func() time.Duration { return t.EchoInterval() + t.limits.echoTimeout - pc.silence() }
	silent := time.NewTimer(untilSilent())
	defer silent.Stop()
	for lc.flush(ctx, time.Now(), false) == nil {
		select {
		case <-l.wake:
		case <-silent.C:
			wait := untilSilent()
			if wait <= 0 {
				return
			}
			silent.Reset(max(wait, t.limits.echoInterval))
		case <-pc.ended:
			return
		case <-until.C:
			return
		case <-ctx.Done():
			_ = lc.flush(ctx, time.Now(), false) // counts what it drops
			return
		}
	}
}

// silence returns the time since the last bytes of the peer, accurate to a second.
func (pc *packetConn) silence() time.Duration {
	return time.Since(pc.t.began) - time.Duration(pc.received.Load())
}
