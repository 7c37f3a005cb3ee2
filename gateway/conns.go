// SPDX-License-Identifier: MPL-2.0

package gateway

import (
	"container/list"
	"net"
	"sync"
	"sync/atomic"
	"time"
)

// conn is one client connection and, once it is routed, the connection to its upstream.
type conn struct {
	client net.Conn
	side   *Listener
	began  time.Time
	origin
	trip *trip // nil: not noted

	// Guarded by conns.mu.
	upstream net.Conn
	waiting  *list.Element // its place among those without a hello
	shed     bool          // closed to make room
}

// conns is every open client connection. It bounds their number and closes them all at the end.
type conns struct {
	max   *atomic.Int64
	grace time.Duration // a connection without a hello older than this makes room for a new one

	mu      sync.Mutex
	open    map[*conn]struct{}
	waiting list.List // of *conn that have not sent their hello, oldest first
	closed  bool
}

// add registers c. When the limit is reached, the connection that has been waiting longest for its hello goes; if none is
// older than the grace, or everything is being closed, c is not admitted.
func (s *conns) add(c *conn) bool {
	s.mu.Lock()
	var shed *conn
	ok := !s.closed
	if ok && int64(len(s.open)) >= s.max.Load() {
		if shed = s.oldestLocked(); shed == nil || c.began.Sub(shed.began) < s.grace {
			shed, ok = nil, false
		} else {
			shed.shed = true
			s.dropLocked(shed)
		}
	}
	if ok {
		s.open[c] = struct{}{}
		c.waiting = s.waiting.PushBack(c)
	}
	s.mu.Unlock()
	if shed != nil {
		shed.client.Close()
	}
	return ok
}

func (s *conns) oldestLocked() *conn {
	if e := s.waiting.Front(); e != nil {
		return e.Value.(*conn)
	}
	return nil
}

func (s *conns) dropLocked(c *conn) {
	delete(s.open, c)
	if c.waiting != nil {
		s.waiting.Remove(c.waiting)
		c.waiting = nil
	}
}

// hello notes that c has sent its hello: it is not closed for the sake of others any more. It returns false if it already was.
func (s *conns) hello(c *conn) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if c.waiting != nil {
		s.waiting.Remove(c.waiting)
		c.waiting = nil
	}
	return !c.shed
}

// routed gives c its upstream, which is closed with it from now on. It returns false if everything is being closed.
func (s *conns) routed(c *conn, upstream net.Conn) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return false
	}
	c.upstream = upstream
	return true
}

// remove forgets c and closes both its connections.
func (s *conns) remove(c *conn) {
	s.mu.Lock()
	s.dropLocked(c)
	upstream := c.upstream
	s.mu.Unlock()
	c.client.Close()
	if upstream != nil {
		upstream.Close()
	}
}

// closeAll closes every connection and admits no more.
func (s *conns) closeAll() {
	s.mu.Lock()
	s.closed = true
	var all []net.Conn
	for c := range s.open {
		if all = append(all, c.client); c.upstream != nil {
			all = append(all, c.upstream)
		}
	}
	s.mu.Unlock()
	for _, c := range all {
		c.Close()
	}
}
