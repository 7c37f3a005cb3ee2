// SPDX-License-Identifier: MPL-2.0

package wanfed

import (
	"bufio"
	"bytes"
	"context"
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
	if must := m.sendsProxy(c.RemoteAddr()); must || m.cfg.GatewayAt != nil {
		c = &proxyConn{Conn: c, must: must}
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

// proxyConn is a connection that must or may begin with a PROXY header.
type proxyConn struct {
	net.Conn
	must   bool     // otherwise readHeader also accepts a connection without a header
	source net.Addr // from the header; nil: not read yet, LOCAL, or no header
	unread []byte   // read by readHeader and not part of a header
}

func (p *proxyConn) Read(b []byte) (int, error) {
	if len(p.unread) > 0 {
		n := copy(b, p.unread)
		p.unread = p.unread[n:]
		return n, nil
	}
	return p.Conn.Read(b)
}

// RemoteAddr returns the address of the client.
func (p *proxyConn) RemoteAddr() net.Addr {
	if p.source != nil {
		return p.source
	}
	return p.Conn.RemoteAddr()
}

var (
	// errProxyHeader reports that a connection does not begin with a valid
	// PROXY header.
	errProxyHeader = errors.New("no valid PROXY header")
	// errProxySender reports a PROXY header from an address that may not send
	// one.
	errProxySender = errors.New("PROXY header from an address that is not a gateway")
)

// readHeader reads the PROXY header. It fails if the header, or the first byte
// of a connection without a header, does not arrive before limit. It calls
// permitted when a header begins that the connection need not have.
func (p *proxyConn) readHeader(limit time.Time, permitted func() bool) error {
	_ = p.Conn.SetReadDeadline(limit) // if it fails, Read fails too
	defer p.Conn.SetReadDeadline(time.Time{})
	var in io.Reader = p.Conn
	if !p.must {
		first := make([]byte, 1)
		if _, err := io.ReadFull(in, first); err != nil {
			return err
		}
		if first[0] != proxyproto.Signature[0] {
			p.unread = first
			return nil
		}
		if !permitted() {
			return errProxySender
		}
		in = io.MultiReader(bytes.NewReader(first), in)
	}
	source, err := proxyproto.ReadFrom(in)
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
	addr, ok := addrOf(from)
	return ok && slices.ContainsFunc(m.cfg.ProxyFrom, func(p netip.Prefix) bool { return p.Contains(addr) })
}

// addrOf returns the IP address of a TCP address.
func addrOf(a net.Addr) (netip.Addr, bool) {
	tcp, ok := a.(*net.TCPAddr)
	if !ok {
		return netip.Addr{}, false
	}
	return tcp.AddrPort().Addr().Unmap().WithZone(""), true
}

// readProxy reads the PROXY header if the connection must begin with a PROXY
// header, or if it comes from a gateway and begins with one.
func (m *Mux) readProxy(ctx context.Context, hs *handshake, limit time.Time) error {
	c := hs.raw
	if p, ok := c.(*sniffConn); ok {
		c = p.Conn
	}
	p, ok := c.(*proxyConn)
	if !ok {
		return nil
	}
	ctx, cancel := context.WithDeadline(ctx, limit)
	defer cancel()
	if err := p.readHeader(limit, func() bool {
		from, ok := addrOf(p.Conn.RemoteAddr())
		return ok && m.cfg.GatewayAt(ctx, from)
	}); err != nil {
		return err
	}
	m.handshakes.setSource(hs, sourceOf(p.RemoteAddr()))
	return nil
}
