// SPDX-License-Identifier: MPL-2.0

package wanfed

import (
	"context"
	"errors"
	"net"
	"sync"
	"time"
)

// memNet is a network of pipes for tests in a synctest bubble. The tests use
// limits of minutes without change. yamux does not work in a bubble, because it
// keeps timers in a global pool.
type memNet struct {
	mu        sync.Mutex
	listeners map[string]*memListener
	conns     map[string][]net.Conn // client ends, by dialed address
	dials     []time.Time
}

func newMemNet() *memNet {
	return &memNet{listeners: map[string]*memListener{}, conns: map[string][]net.Conn{}}
}

func (n *memNet) listen(addr string) *memListener {
	l := &memListener{addr: nameAddr(addr), conns: make(chan net.Conn), doneC: make(chan struct{})}
	n.mu.Lock()
	defer n.mu.Unlock()
	n.listeners[addr] = l
	return l
}

func (n *memNet) dial(ctx context.Context, addr string) (net.Conn, error) {
	n.mu.Lock()
	n.dials = append(n.dials, time.Now())
	l := n.listeners[addr]
	n.mu.Unlock()
	if l == nil {
		return nil, errors.New("no listener")
	}
	client, server := net.Pipe()
	select {
	case l.conns <- server:
		n.mu.Lock()
		defer n.mu.Unlock()
		n.conns[addr] = append(n.conns[addr], client)
		return client, nil
	case <-l.doneC:
		return nil, net.ErrClosed
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

// cut closes the connections to addr and refuses new ones until heal is called.
func (n *memNet) cut(addr string) (heal func()) {
	n.mu.Lock()
	defer n.mu.Unlock()
	for _, c := range n.conns[addr] {
		c.Close()
	}
	l := n.listeners[addr]
	delete(n.listeners, addr)
	return func() {
		n.mu.Lock()
		defer n.mu.Unlock()
		n.listeners[addr] = l
	}
}

// dialed returns the time of each dial.
func (n *memNet) dialed() []time.Time {
	n.mu.Lock()
	defer n.mu.Unlock()
	return append([]time.Time(nil), n.dials...)
}

type memListener struct {
	addr  nameAddr
	conns chan net.Conn
	once  sync.Once
	doneC chan struct{}
}

func (l *memListener) Accept() (net.Conn, error) {
	select {
	case c := <-l.conns:
		return c, nil
	case <-l.doneC:
		return nil, net.ErrClosed
	}
}

func (l *memListener) Close() error   { l.once.Do(func() { close(l.doneC) }); return nil }
func (l *memListener) Addr() net.Addr { return l.addr }
