// SPDX-License-Identifier: MPL-2.0

package sim

import (
	"context"
	"net"
	"net/netip"
	"sync"
	"sync/atomic"
	"time"
)

// network connects hosts and gateways. A dial to an unused address blocks until
// its context ends, as behind a firewall that drops packets.
type network struct {
	mu        sync.Mutex
	endpoints map[string]endpoint
}

// endpoint accepts connections at an address.
type endpoint struct {
	delay  time.Duration // one-way delay
	cut    *atomic.Bool  // true: connections of this endpoint silently lose all data
	accept func(*conn)   // takes ownership of the connection; must not block
}

func newNetwork() *network { return &network{endpoints: map[string]endpoint{}} }

func (n *network) listen(addr string, e endpoint) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.endpoints[addr] = e
}

func (n *network) remove(addr string) {
	n.mu.Lock()
	defer n.mu.Unlock()
	delete(n.endpoints, addr)
}

// dial connects after one round trip, as TCP does. cut replaces that of the
// endpoint unless it is nil.
func (n *network) dial(ctx context.Context, from net.Addr, addr string, cut *atomic.Bool) (*conn, error) {
	to := net.TCPAddrFromAddrPort(netip.MustParseAddrPort(addr))
	n.mu.Lock()
	e, ok := n.endpoints[addr]
	n.mu.Unlock()
	if !ok {
		<-ctx.Done()
		return nil, &net.OpError{Op: "dial", Net: "tcp", Addr: to, Err: ctx.Err()}
	}
	if e.delay > 0 {
		timer := time.NewTimer(2 * e.delay)
		defer timer.Stop()
		select {
		case <-timer.C:
		case <-ctx.Done():
			return nil, &net.OpError{Op: "dial", Net: "tcp", Addr: to, Err: ctx.Err()}
		}
	}
	if cut == nil {
		cut = e.cut
	}
	dialed, accepted := newConns(from, to, e.delay, cut)
	e.accept(accepted)
	return dialed, nil
}

// host is the machine of one server. It counts the traffic and implements
// net.Listener.
type host struct {
	net  *network
	addr *net.TCPAddr

	sent, received, open atomic.Int64 // bytes sent, bytes received, open connections

	accepted chan *conn
	closed   chan struct{}
	once     sync.Once
}

func newHost(n *network, addr string) *host {
	h := &host{
		net: n, addr: net.TCPAddrFromAddrPort(netip.MustParseAddrPort(addr)),
		accepted: make(chan *conn, 4096), // the kernel's backlog
		closed:   make(chan struct{}),
	}
	n.listen(addr, endpoint{accept: h.accept})
	return h
}

// count makes h count the traffic of c.
func (h *host) count(c *conn) *conn {
	c.host = h
	h.open.Add(1)
	return c
}

func (h *host) accept(c *conn) {
	select {
	case h.accepted <- h.count(c):
	default:
		c.Close()
	}
}

func (h *host) dial(ctx context.Context, addr string) (net.Conn, error) {
	c, err := h.net.dial(ctx, h.addr, addr, nil)
	if err != nil {
		return nil, err
	}
	return h.count(c), nil
}

// Accept, Close and Addr implement net.Listener.
func (h *host) Accept() (net.Conn, error) {
	select {
	case c := <-h.accepted:
		return c, nil
	case <-h.closed:
		return nil, &net.OpError{Op: "accept", Net: "tcp", Addr: h.addr, Err: net.ErrClosed}
	}
}

func (h *host) Close() error {
	h.once.Do(func() {
		h.net.remove(h.addr.String())
		close(h.closed)
	})
	return nil
}

func (h *host) Addr() net.Addr { return h.addr }
