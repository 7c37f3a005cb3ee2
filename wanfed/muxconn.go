// SPDX-License-Identifier: MPL-2.0

package wanfed

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/wanfed/wanfed/internal/proxyproto"
	"github.com/wanfed/wanfed/tlsutil"
)

// trackedConn is an accepted connection that calls a function when it is
// closed. It is the innermost wrapper of the connection, except for guard. A
// Close of any other wrapper therefore closes it too.
type trackedConn struct {
	progressConn
	guard    *tlsutil.Guard // below progressConn
	closed   atomic.Bool
	onClosed atomic.Pointer[func()] // not called yet; nil: none
}

func (m *Mux) newTrackedConn(c net.Conn) *trackedConn {
	guard := m.cfg.Identity.Accepted(c)
	return &trackedConn{progressConn: progressConn{Conn: guard}, guard: guard}
}

// onClose calls f once: when c is closed, or at once if c is already closed.
func (c *trackedConn) onClose(f func()) {
	c.onClosed.Store(&f)
	if c.closed.Load() { // Close may have missed f
		c.callOnClosed()
	}
}

func (c *trackedConn) callOnClosed() {
	if f := c.onClosed.Swap(nil); f != nil {
		(*f)()
	}
}

func (c *trackedConn) Close() error {
	c.closed.Store(true)
	c.callOnClosed()
	return c.Conn.Close()
}

// peerLimit bounds the open connections of each peer. The owner of one
// certificate therefore cannot use all file descriptors, or all memory, of a
// server. The zero Peer counts all plain text connections.
type peerLimit struct {
	max int // negative: no limit

	mu   sync.Mutex
	open map[tlsutil.Peer]int
}

// enter counts c until c is closed. It returns false if p is at the limit.
func (l *peerLimit) enter(p tlsutil.Peer, c *trackedConn) bool {
	l.mu.Lock()
	if l.max >= 0 && l.open[p] >= l.max {
		l.mu.Unlock()
		return false
	}
	l.open[p]++
	l.mu.Unlock()
	c.onClose(func() {
		l.mu.Lock()
		defer l.mu.Unlock()
		if l.open[p]--; l.open[p] == 0 {
			delete(l.open, p)
		}
	})
	return true
}

// wrapConn wraps an accepted connection in the readers of the bytes before TLS.
func (m *Mux) wrapConn(c net.Conn) net.Conn {
	if len(m.cfg.ProxyFrom) > 0 && m.sendsProxy(c.RemoteAddr()) {
		c = &proxyConn{Conn: c}
	}
	if m.plain != nil {
		c = &sniffConn{c, bufio.NewReaderSize(c, 16)}
	}
	return c
}

// recordHandshake is the first byte of a TLS connection: the type of the record
// with the ClientHello (RFC 8446 section 5.1).
const recordHandshake = 22

// sniffConn is a connection whose first byte can be inspected before it is
// read.
type sniffConn struct {
	net.Conn
	br *bufio.Reader // reads Conn
}

func (c *sniffConn) Read(b []byte) (int, error) { return c.br.Read(b) }

// isPlainText waits for the first byte. It reports whether the byte does not
// begin a TLS connection. It fails if no byte arrives before limit.
func (c *sniffConn) isPlainText(limit time.Time) (bool, error) {
	_ = c.Conn.SetReadDeadline(limit) // if it fails, Peek fails too
	b, err := c.br.Peek(1)
	_ = c.Conn.SetReadDeadline(time.Time{})
	return err == nil && b[0] != recordHandshake, err
}

// proxyConn is a connection that must begin with a PROXY header.
type proxyConn struct {
	net.Conn
	source net.Addr // from the header; nil: not read yet, or LOCAL
}

// RemoteAddr returns the address of the client.
func (p *proxyConn) RemoteAddr() net.Addr {
	if p.source != nil {
		return p.source
	}
	return p.Conn.RemoteAddr()
}

// errProxyHeader reports that a connection does not begin with a valid PROXY
// header.
var errProxyHeader = errors.New("no valid PROXY header")

// readHeader reads the PROXY header. It fails if the header does not arrive
// before limit.
func (p *proxyConn) readHeader(limit time.Time) error {
	_ = p.Conn.SetReadDeadline(limit) // if it fails, Read fails too
	source, err := proxyproto.ReadFrom(p.Conn)
	_ = p.Conn.SetReadDeadline(time.Time{})
	var ne net.Error
	switch {
	case err == io.EOF, errors.As(err, &ne):
		return err
	case err != nil:
		return fmt.Errorf("%w: %w", errProxyHeader, err)
	}
	if source.IsValid() {
		p.source = net.TCPAddrFromAddrPort(source)
	}
	return nil
}

// unmapped converts networks inside ::ffff:0:0/96 to IPv4 networks.
func unmapped(list []netip.Prefix) []netip.Prefix {
	list = slices.Clone(list)
	for i, p := range list {
		if p.Addr().Is4In6() && p.Bits() >= 96 {
			list[i] = netip.PrefixFrom(p.Addr().Unmap(), p.Bits()-96)
		}
	}
	return list
}

// sendsProxy reports whether a connection from the address must begin with a
// PROXY header, because the address is in proxy_protocol.
func (m *Mux) sendsProxy(from net.Addr) bool {
	tcp, ok := from.(*net.TCPAddr)
	if !ok {
		return false
	}
	addr := tcp.AddrPort().Addr().Unmap().WithZone("")
	return slices.ContainsFunc(m.cfg.ProxyFrom, func(p netip.Prefix) bool { return p.Contains(addr) })
}

// readProxy reads the PROXY header if the connection must begin with a PROXY
// header.
func (m *Mux) readProxy(hs *handshake, limit time.Time) error {
	c := hs.raw
	if p, ok := c.(*sniffConn); ok {
		c = p.Conn
	}
	p, ok := c.(*proxyConn)
	if !ok {
		return nil
	}
	if err := p.readHeader(limit); err != nil {
		return err
	}
	m.handshakes.setSource(hs, sourceOf(p.RemoteAddr()))
	return nil
}
