// SPDX-License-Identifier: MPL-2.0

package wanfed

import (
	"context"
	"crypto/tls"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/wanfed/wanfed/internal/backoff"
	"github.com/wanfed/wanfed/internal/broadcast"
)

// otherPaths returns the paths to the target to, with the path of c last. The
// path of c may still work, because the fault may be in a gateway behind the
// first gateway. otherPaths returns nil for a target in the local datacenter.
func (d *Dialer) otherPaths(c *tls.Conn, to Target) []Path {
	paths, err := d.candidates(to)
	if err != nil || to.DC == d.dc {
		return nil
	}
	current := pathConnOf(c).path.Addr
	if i := slices.IndexFunc(paths, func(p Path) bool { return p.Addr == current }); i >= 0 {
		last := paths[i]
		paths = append(slices.Delete(paths, i, i+1), last)
	}
	return paths
}

// dialBetter starts to dial the paths to which c should migrate, and returns at
// once. It returns false if there are none, or if c leads to the local
// datacenter. It sends the new connection to dialedC, or nil if every dial
// failed. dialedC must have a free slot in its buffer.
func (t *Tunnel) dialBetter(
	ctx context.Context, wg *sync.WaitGroup, c *tls.Conn, to Target, alpn string, dialedC chan<- *tls.Conn,
) bool {
	d, p := t.cfg.Dialer, pathConnOf(c)
	if p.dc == d.dc {
		return false
	}
	paths := d.paths.scorer(p.dc).better(p.path, d.cfg.AddressBook.Load().Paths[p.dc])
	if len(paths) == 0 {
		return false
	}
	wg.Go(func() { dialedC <- t.dialReplacement(ctx, c, to, paths, alpn, "connection migrates to a better path") })
	return true
}

// dialReplacement dials paths for a connection that replaces c. It logs msg and
// returns the connection, or returns nil if every dial failed.
func (t *Tunnel) dialReplacement(
	ctx context.Context, c *tls.Conn, to Target, paths []Path, alpn, msg string,
) *tls.Conn {
	ctx, cancel := context.WithTimeout(ctx, t.limits.dialTimeout)
	defer cancel()
	log := t.log.With("peer", target{dc: to.DC, node: to.Node}.String(), "alpn", alpn)
	next, err := t.cfg.Dialer.dialPaths(ctx, to, paths, []string{alpn})
	if err != nil {
		log.Debug("no other path works", "err", err)
		return nil
	}
	log.Info(msg, "gateway", pathConnOf(next).path.Addr, "from", pathConnOf(c).path.Addr)
	return next
}

// needlessDials is the backoff of dials that replace connections without echoes. The
// zero value is ready for use.
type needlessDials struct {
	mu      sync.Mutex
	backoff backoff.Backoff
	until   time.Time
}

// Bounds of the pause after a needless dial. A connection without an echo for
// limits.echoTimeout ends in any case.
const minNeedlessPause, maxNeedlessPause = 250 * time.Millisecond, 10 * time.Second

// pause returns the time until the next dial may start.
func (n *needlessDials) pause(now time.Time) time.Duration {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.until.Sub(now)
}

// record records whether a dial was needless: the missing echo arrived during the
// dial.
func (n *needlessDials) record(needless bool, now time.Time) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.backoff.Min, n.backoff.Max = minNeedlessPause, maxNeedlessPause; needless {
		n.until = now.Add(n.backoff.Next())
	} else {
		n.backoff.Reset()
		n.until = now
	}
}

// lateEchoes notifies all links over a gateway of a late echo of one of them. The zero
// value is ready for use.
type lateEchoes struct {
	links broadcast.Keyed[string] // by the address of the gateway

	mu       sync.Mutex
	notified map[string]time.Time // by the address of the gateway
}

// notify notifies the links over the gateway at addr, at most once per interval. Each of
// them then sends an echo request. On a busy machine every echo is late, and without
// the limit each would cause one on every link.
func (l *lateEchoes) notify(addr string, interval time.Duration, now time.Time) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if now.Sub(l.notified[addr]) < interval {
		return
	}
	if l.notified == nil {
		l.notified = map[string]time.Time{}
	}
	maps.DeleteFunc(l.notified, func(_ string, at time.Time) bool { return now.Sub(at) >= interval })
	l.notified[addr] = now
	l.links.Notify(addr)
}

// closePending closes the connection in dialedC, if dialedC has one.
func closePending(dialedC <-chan *tls.Conn) {
	select {
	case c := <-dialedC:
		if c != nil {
			closeConn(c)
		}
	default:
	}
}
