// SPDX-License-Identifier: MPL-2.0

package raftstore

import (
	"errors"
	"net"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/hashicorp/raft"
)

// network connects the stores of one test with TCP on loopback, or with pipes
// in memory for fake time. Dial finds a node by name, as the dialer of a server
// does.
type network struct {
	listen func(nw *network) net.Listener
	dial   func(l net.Listener, timeout time.Duration) (net.Conn, error)

	mu    sync.Mutex
	nodes map[string]net.Listener
	cut   map[string]bool        // isolated nodes
	conns map[net.Conn][2]string // dialed connections with the nodes at both ends
}

func newNetwork(listen func(*network) net.Listener, dial func(net.Listener, time.Duration) (net.Conn, error)) *network {
	return &network{
		listen: listen, dial: dial,
		nodes: make(map[string]net.Listener), cut: make(map[string]bool), conns: make(map[net.Conn][2]string),
	}
}

func loopback(t testing.TB) *network {
	return newNetwork(
		func(*network) net.Listener {
			l, err := net.Listen("tcp", "127.0.0.1:0")
			if err != nil {
				t.Fatal(err)
			}
			return l
		},
		func(l net.Listener, timeout time.Duration) (net.Conn, error) {
			return net.DialTimeout("tcp", l.Addr().String(), timeout)
		})
}

// layer is one node's raft.StreamLayer.
type layer struct {
	net.Listener
	nw   *network
	node string
}

func (nw *network) layer(node string) *layer {
	l := nw.listen(nw)
	nw.mu.Lock()
	defer nw.mu.Unlock()
	nw.nodes[node] = l
	return &layer{Listener: l, nw: nw, node: node}
}

var errCut = errors.New("no route")

func (l *layer) Dial(node raft.ServerAddress, timeout time.Duration) (net.Conn, error) {
	l.nw.mu.Lock()
	to, ok := l.nw.nodes[string(node)]
	ok = ok && !l.nw.cut[string(node)] && !l.nw.cut[l.node]
	l.nw.mu.Unlock()
	if !ok {
		return nil, errCut
	}
	c, err := l.nw.dial(to, timeout)
	if err != nil {
		return nil, err
	}
	l.nw.mu.Lock()
	defer l.nw.mu.Unlock()
	if l.nw.cut[string(node)] || l.nw.cut[l.node] { // isolated during the dial
		c.Close()
		return nil, errCut
	}
	l.nw.conns[c] = [2]string{l.node, string(node)}
	return c, nil
}

// isolate disconnects node from the other nodes, or connects node again.
func (nw *network) isolate(node string, cut bool) {
	nw.mu.Lock()
	defer nw.mu.Unlock()
	nw.cut[node] = cut
	for c, ends := range nw.conns {
		if slices.Contains(ends[:], node) {
			c.Close()
			delete(nw.conns, c)
		}
	}
}

// config returns the Config of a store with small files. The heartbeat is long
// enough for a busy machine.
func (nw *network) config(t testing.TB, node, dir string) Config {
	return Config{
		Node: node, Dir: dir, Stream: nw.layer(node),
		Logger:    testLogger().With("node", node),
		Heartbeat: 4 * time.Second, segmentSize: 256 << 10,
	}
}
