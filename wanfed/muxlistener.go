// SPDX-License-Identifier: MPL-2.0

package wanfed

import (
	"context"
	"crypto/tls"
	"net"
	"sync"
	"sync/atomic"

	"github.com/wanfed/wanfed/tlsutil"
)

// Listener registers a protocol id like Handle and returns a listener for
// libraries that use a net.Listener, such as gRPC and Raft. Accept returns the
// connections of the protocol as *tls.Conn, after the handshake. The caller of
// Accept owns the connection. Accept may be called before Run. It fails with
// net.ErrClosed when Run has ended or the listener was closed. After Close, the
// Mux refuses connections of this protocol and continues with the others.
func (m *Mux) Listener(alpn string, roles []tlsutil.Role, sameDC bool) net.Listener {
	if alpn == "" {
		panic("wanfed: Mux.Listener needs a protocol id")
	}
	return m.listen([]string{alpn}, roles, sameDC)
}

// HTTPListener is like Listener, for an HTTP server on a port of its own. It
// accepts HTTP/2, HTTP/1.1, and clients that offer no protocol id. If plain is
// true, it also accepts plain text connections, whose peer is not
// authenticated. Use plain only for a port that is reachable from this machine
// alone.
func (m *Mux) HTTPListener(roles []tlsutil.Role, plain bool) net.Listener {
	l := m.listen([]string{"h2", "http/1.1", ""}, roles, false)
	if plain {
		m.mu.Lock()
		defer m.mu.Unlock()
		m.plain = l
	}
	return l
}

func (m *Mux) listen(alpn []string, roles []tlsutil.Role, sameDC bool) *connListener {
	l := newConnListener(nameAddr(alpn[0]))
	for _, id := range alpn {
		m.handle(id, roles, sameDC, func(ctx context.Context, c *tls.Conn, p tlsutil.Peer) {
			m.untrack(c.NetConn()) // the caller of Accept closes it; until then pass returns when ctx ends
			if l.pass(ctx, c) {
				return
			}
			if ctx.Err() == nil {
				alpn := c.ConnectionState().NegotiatedProtocol
				m.refusals.record(refusedNotServed, c.RemoteAddr(), nil, "peer", p, "alpn", alpn)
			}
			closeConn(c)
		})
	}
	m.mu.Lock()
	m.listeners = append(m.listeners, l)
	m.mu.Unlock()
	return l
}

// connListener is a net.Listener for connections that were accepted elsewhere.
type connListener struct {
	conns chan net.Conn
	once  sync.Once
	doneC chan struct{} // closed by Close
	addr  atomic.Pointer[net.Addr]
}

func newConnListener(addr net.Addr) *connListener {
	l := &connListener{conns: make(chan net.Conn), doneC: make(chan struct{})}
	l.addr.Store(&addr)
	return l
}

// pass waits until a call of Accept returns c. It returns false if the listener
// was closed or ctx ended. The caller then closes c.
func (l *connListener) pass(ctx context.Context, c net.Conn) bool {
	select {
	case l.conns <- c:
		return true
	case <-l.doneC:
	case <-ctx.Done():
	}
	return false
}

func (l *connListener) Accept() (net.Conn, error) {
	select {
	case c := <-l.conns:
		return c, nil
	case <-l.doneC:
		return nil, &net.OpError{Op: "accept", Net: "tcp", Addr: l.Addr(), Err: net.ErrClosed}
	}
}

func (l *connListener) Close() error {
	l.once.Do(func() { close(l.doneC) })
	return nil
}

// Addr returns the address of the port after Mux.Run was called, and the
// protocol id before.
func (l *connListener) Addr() net.Addr { return *l.addr.Load() }

// nameAddr is a net.Addr that is only a name.
type nameAddr string

func (nameAddr) Network() string  { return "tcp" }
func (a nameAddr) String() string { return string(a) }
