// SPDX-License-Identifier: MPL-2.0

package wanfed

import (
	"context"
	"crypto/tls"
	"sync"
	"time"
)

// betterPaths returns the paths to which c should migrate, best first. These
// are the paths that the mode and the address book prefer to the path of c, and
// the paths that are much faster. Paths that failed recently are left out.
// Connections inside the local datacenter do not migrate.
func (d *Dialer) betterPaths(c *tls.Conn) []Path {
	p := pathConnOf(c)
	if p == nil || p.dc == d.dc {
		return nil
	}
	return d.paths.better(p.dc, p.path, d.cfg.AddressBook.Load().Paths[p.dc], time.Now())
}

// otherPaths returns the paths to the target to. The path of c is the last one.
// It is included because the fault may be in a gateway behind the first
// gateway.
func (d *Dialer) otherPaths(c *tls.Conn, to Target) []Path {
	paths, err := d.candidates(to)
	p := pathConnOf(c)
	if err != nil || p == nil || to.DC == d.dc {
		return nil
	}
	var others, last []Path
	for _, x := range paths {
		if x.Addr == p.path.Addr {
			last = append(last, x)
		} else {
			others = append(others, x)
		}
	}
	return append(others, last...)
}

// dialBetter starts to dial the paths that are better than the path of c, and
// returns at once. It returns false if no path is better. It sends the new
// connection to dialedC, or nil if every dial failed. dialedC must have a free
// slot in its buffer.
func (t *Tunnel) dialBetter(
	ctx context.Context, wg *sync.WaitGroup, c *tls.Conn, to Target, alpn string, dialedC chan<- *tls.Conn,
) bool {
	paths := t.cfg.Dialer.betterPaths(c)
	if len(paths) == 0 {
		return false
	}
	wg.Go(func() { dialedC <- t.dialReplacement(ctx, c, to, paths, alpn, "connection migrates to a better path") })
	return true
}

// dialReplacement dials paths for the traffic of c and logs msg on success. It
// returns nil if every dial failed.
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

// closePending closes the connection in dialedC, if there is one.
func closePending(dialedC <-chan *tls.Conn) {
	select {
	case c := <-dialedC:
		if c != nil {
			closeConn(c)
		}
	default:
	}
}
