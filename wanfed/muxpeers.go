// SPDX-License-Identifier: MPL-2.0

package wanfed

import (
	"net"
	"sync"

	"github.com/wanfed/wanfed/tlsutil"
)

// maxPerPeer is the default of MuxConfig.MaxPerPeer. Servers have a handful of connections to each other, gateways one, and an
// operator's certificate serves many programs at once, perhaps.
const maxPerPeer = 512

// peers counts the open connections of each peer, so that no certificate alone can take all files, or the memory, of a server. The
// zero Peer is who was not asked: what is plain.
type peers struct {
	max int // negative: no bound

	mu   sync.Mutex
	open map[tlsutil.Peer]int
}

// enter counts c until it is closed; false means that p has as many connections as one may.
func (s *peers) enter(p tlsutil.Peer, c *counted) bool {
	s.mu.Lock()
	ok := s.max < 0 || s.open[p] < s.max
	if ok {
		s.open[p]++
	}
	s.mu.Unlock()
	if ok {
		c.onClose(func() { s.leave(p) })
	}
	return ok
}

func (s *peers) leave(p tlsutil.Peer) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.open[p]--; s.open[p] == 0 {
		delete(s.open, p)
	}
}

// counted is an accepted connection. Whoever owns it, or what is around it, its Close is heard of.
type counted struct {
	net.Conn

	mu     sync.Mutex
	closed bool
	leave  func() // nil: nobody wants to hear
}

// onClose has leave called once: when c is closed, or at once if it is.
func (c *counted) onClose(leave func()) {
	c.mu.Lock()
	late := c.closed
	if !late {
		c.leave = leave
	}
	c.mu.Unlock()
	if late {
		leave()
	}
}

func (c *counted) Close() error {
	c.mu.Lock()
	leave := c.leave
	c.closed, c.leave = true, nil
	c.mu.Unlock()
	if leave != nil {
		leave()
	}
	return c.Conn.Close()
}
