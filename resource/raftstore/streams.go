// SPDX-License-Identifier: MPL-2.0

package raftstore

import (
	"net"
	"sync"
	"time"

	"github.com/hashicorp/raft"
)

// streams adapts the stream layer of Config to the transport of Raft. The
// address of streams is the node name. Close closes all connections, because
// the transport does not end the goroutines that read from accepted
// connections.
type streams struct {
	inner raft.StreamLayer
	node  nodeAddr

	handlers sync.WaitGroup // counts accepted connections until the transport closes them

	mu     sync.Mutex
	conns  map[net.Conn]struct{} // open connections, accepted and dialed
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
	return s.track(c, &s.handlers)
}

// Dial implements raft.StreamLayer.
func (s *streams) Dial(node raft.ServerAddress, timeout time.Duration) (net.Conn, error) {
	c, err := s.inner.Dial(node, min(timeout, dialTimeout))
	if err != nil {
		return nil, err
	}
	return s.track(c, new(sync.WaitGroup))
}

// track registers c, so Close closes c. open counts c until the transport
// closes the returned connection.
func (s *streams) track(c net.Conn, open *sync.WaitGroup) (net.Conn, error) {
	s.mu.Lock()
	closed := s.closed
	if !closed {
		s.conns[c] = struct{}{}
		open.Add(1)
	}
	s.mu.Unlock()
	if closed {
		c.Close()
		return nil, net.ErrClosed
	}
	return &stream{Conn: c, s: s, open: open}, nil
}

// Close closes all connections and ends Accept and Dial. It is idempotent.
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

// stream is a connection of the transport.
type stream struct {
	net.Conn
	s    *streams
	open *sync.WaitGroup
	once sync.Once
}

func (c *stream) Close() error {
	err := c.Conn.Close()
	c.once.Do(func() {
		c.s.mu.Lock()
		delete(c.s.conns, c.Conn)
		c.s.mu.Unlock()
		c.open.Done()
	})
	return err
}
