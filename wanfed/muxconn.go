// SPDX-License-Identifier: MPL-2.0

package wanfed

import (
	"errors"
	"io"
	"net"
	"net/netip"
	"slices"
	"sync"
	"time"

	"github.com/wanfed/wanfed/internal/proxyproto"
	"github.com/wanfed/wanfed/tlsutil"
)

// trackedConn is an accepted connection whose Close is reported. It is the
// innermost wrapper, so a Close of any other wrapper also closes it.
type trackedConn struct {
	net.Conn

	mu       sync.Mutex
	closed   bool
	onClosed func() // nil: none
}

// onClose calls f once: when c is closed, or at once if it is closed already.
func (c *trackedConn) onClose(f func()) {
	c.mu.Lock()
	closed := c.closed
	if !closed {
		c.onClosed = f
	}
	c.mu.Unlock()
	if closed {
		f()
	}
}

func (c *trackedConn) Close() error {
	c.mu.Lock()
	f := c.onClosed
	c.closed, c.onClosed = true, nil
	c.mu.Unlock()
	if f != nil {
		f()
	}
	return c.Conn.Close()
}

// peerLimit bounds the open connections of each peer. The limit prevents that
// one certificate uses all file descriptors, or all memory, of a server. The
// zero Peer stands for plain text connections, whose peer is not authenticated.
type peerLimit struct {
	max int // negative: no limit

	mu   sync.Mutex
	open map[tlsutil.Peer]int
}

// enter counts c until it is closed. It returns false if p is at the limit.
func (l *peerLimit) enter(p tlsutil.Peer, c *trackedConn) bool {
	l.mu.Lock()
	ok := l.max < 0 || l.open[p] < l.max
	if ok {
		l.open[p]++
	}
	l.mu.Unlock()
	if ok {
		c.onClose(func() { l.leave(p) })
	}
	return ok
}

func (l *peerLimit) leave(p tlsutil.Peer) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.open[p]--; l.open[p] == 0 {
		delete(l.open, p)
	}
}

// wrapConn wraps an accepted connection in the readers that run before TLS.
func (m *Mux) wrapConn(c net.Conn) net.Conn {
	if len(m.cfg.ProxyFrom) > 0 && m.sendsProxy(c.RemoteAddr()) {
		c = &proxyConn{Conn: c}
	}
	if m.plain != nil {
		c = &sniffConn{Conn: c}
	}
	return c
}

// recordHandshake is the first byte of a TLS connection: the type of the record
// with the ClientHello (RFC 8446 section 5.1).
const recordHandshake = 22

// sniffConn is a connection whose first byte can be peeked. One goroutine at a
// time reads.
type sniffConn struct {
	net.Conn
	first  byte
	unread bool // Read returns first next
}

// peek reads the first byte, until limit. It returns false if no byte arrives.
// The next Read then returns the error.
func (p *sniffConn) peek(limit time.Time) bool {
	_ = p.Conn.SetReadDeadline(limit) // an error shows in Read
	var b [1]byte
	n, _ := p.Conn.Read(b[:])
	_ = p.Conn.SetReadDeadline(time.Time{})
	p.first, p.unread = b[0], n == 1
	return p.unread
}

func (p *sniffConn) Read(b []byte) (int, error) {
	if !p.unread || len(b) == 0 {
		return p.Conn.Read(b)
	}
	b[0], p.unread = p.first, false
	return 1, nil
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

// proxyHeaderError reports that a connection does not begin with a valid PROXY
// header.
type proxyHeaderError struct{ err error }

func (e *proxyHeaderError) Error() string { return e.err.Error() }
func (e *proxyHeaderError) Unwrap() error { return e.err }

// readHeader reads the header, until limit.
func (p *proxyConn) readHeader(limit time.Time) error {
	_ = p.Conn.SetReadDeadline(limit) // an error shows in Read
	source, err := proxyproto.ReadFrom(p.Conn)
	_ = p.Conn.SetReadDeadline(time.Time{})
	var ne net.Error
	switch {
	case err == io.EOF, errors.As(err, &ne):
		return err
	case err != nil:
		return &proxyHeaderError{err}
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

// sendsProxy reports whether connections from the address must begin with a
// PROXY header.
func (m *Mux) sendsProxy(from net.Addr) bool {
	tcp, ok := from.(*net.TCPAddr)
	if !ok {
		return false
	}
	addr := tcp.AddrPort().Addr().Unmap().WithZone("")
	return slices.ContainsFunc(m.cfg.ProxyFrom, func(p netip.Prefix) bool { return p.Contains(addr) })
}

// readProxy reads the PROXY header of a connection that must have one.
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
