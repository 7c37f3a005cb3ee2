// SPDX-License-Identifier: MPL-2.0

package raftstore

import (
	"net"
	"sync"
	"time"

	"github.com/hashicorp/raft"
)

// streams adapts the stream layer of Config to Raft's transport. Its address is the
// name of the node. Its Close closes every connection, because the transport would
// leave the goroutines of accepted connections blocked in a read.
type streams struct {
	inner raft.StreamLayer
	node  nodeAddr

	handlers sync.WaitGroup // accepted connections that the transport has not closed

	mu     sync.Mutex
	conns  map[net.Conn]struct{} // open, accepted or dialed
	closed bool
}

func newStreams(inner raft.StreamLayer, node string) *streams {
	return &streams{inner: inner, node: nodeAddr(node), conns: make(map[net.Conn]struct{})}
}

// nodeAddr is a node's name as a network address.
type nodeAddr string

func (nodeAddr) Network() string  { return "node" }
func (a nodeAddr) String() string { return string(a) }

// Addr implements net.Listener.
func (s *streams) Addr() net.Addr { return s.node }

// Accept implements net.Listener.
func (s *streams) Accept() (net.Conn, error) {
	c, err := s.inner.Accept()
	if err != nil {
		return nil, err
	}
	return s.own(c, &s.handlers)
}

// Dial implements raft.StreamLayer.
func (s *streams) Dial(node raft.ServerAddress, timeout time.Duration) (net.Conn, error) {
	c, err := s.inner.Dial(node, min(timeout, dialTimeout))
	if err != nil {
		return nil, err
	}
	return s.own(c, new(sync.WaitGroup))
}

// own makes Close end c. users counts c until the transport closes the returned
// connection.
func (s *streams) own(c net.Conn, users *sync.WaitGroup) (net.Conn, error) {
	s.mu.Lock()
	closed := s.closed
	if !closed {
		s.conns[c] = struct{}{}
		users.Add(1)
	}
	s.mu.Unlock()
	if closed {
		c.Close()
		return nil, net.ErrClosed
	}
	return &stream{Conn: c, s: s, users: users}, nil
}

// Close ends every connection, accepts and dials. It is idempotent.
func (s *streams) Close() error {
	s.mu.Lock()
	closed, conns := s.closed, s.conns
	s.closed, s.conns = true, nil
	s.mu.Unlock()
	if closed {
		return nil
	}
	err := s.inner.Close()
	for c := range conns {
		c.Close()
	}
	return err
}

// stream is a connection that the transport closes.
type stream struct {
	net.Conn
	s     *streams
	users *sync.WaitGroup
	once  sync.Once
}

func (c *stream) Close() error {
	err := c.Conn.Close()
	c.once.Do(func() {
		c.s.mu.Lock()
		delete(c.s.conns, c.Conn)
		c.s.mu.Unlock()
		c.users.Done()
	})
	return err
}
