// SPDX-License-Identifier: MPL-2.0

package wanfed

import (
	"context"
	"crypto/tls"
	"sync"
	"time"
)

// better gives the hops to which c should move: those that the mode and the book prefer to the way that it took, and much
// faster ones, without those that failed recently. There are none to the own datacenter, whose servers are dialed directly.
func (d *Dialer) better(c *tls.Conn) []Path {
	p := pathOf(c)
	if p == nil || p.dc == d.dc {
		return nil
	}
	return d.paths.better(p.dc, p.hop, d.cfg.AddressBook.Load().Paths[p.dc], time.Now())
}

// lookForBetter dials the hops that are better than the way that c took. It returns at once; false means that there
// are none. The result, nil if all failed, comes on found, which has room for it.
func (t *Tunnel) lookForBetter(ctx context.Context, wg *sync.WaitGroup, c *tls.Conn, to Target, proto string, found chan<- *tls.Conn) bool {
	hops := t.cfg.Dialer.better(c)
	if len(hops) == 0 {
		return false
	}
	wg.Go(func() { found <- t.dialBeside(ctx, c, to, hops, proto, "connection moves to a better way") })
	return true
}

// dialBeside dials hops for what goes over c now, and says in the log what it is done for. It returns nil if all failed.
func (t *Tunnel) dialBeside(ctx context.Context, c *tls.Conn, to Target, hops []Path, proto, why string) *tls.Conn {
	ctx, cancel := context.WithTimeout(ctx, t.tm.dial)
	defer cancel()
	log := t.log.With("peer", (target{dc: to.DC, node: to.Node}).String(), "alpn", proto)
	next, err := t.cfg.Dialer.dialHops(ctx, to, hops, []string{proto})
	if err != nil {
		log.Debug("no other way", "err", err)
		return nil
	}
	log.Info(why, "gateway", pathOf(next).hop.Addr, "from", pathOf(c).hop.Addr)
	return next
}

// dropFound closes what was found too late.
func dropFound(found <-chan *tls.Conn) {
	select {
	case c := <-found:
		if c != nil {
			closeConn(c)
		}
	default:
	}
}
