// SPDX-License-Identifier: MPL-2.0

package wanfed

import (
	"errors"
	"io"
	"net"
	"net/netip"
	"slices"
	"time"

	"github.com/wanfed/wanfed/internal/proxyproto"
)

// proxied is a connection that has to begin with a PROXY header. Who made it is known once that was read.
type proxied struct {
	net.Conn
	source net.Addr // nil: not known, or the sender's own connection
}

// RemoteAddr is the client's address.
func (p *proxied) RemoteAddr() net.Addr {
	if p.source != nil {
		return p.source
	}
	return p.Conn.RemoteAddr()
}

// proxyHeaderError says that a connection does not begin with a PROXY header that can be used.
type proxyHeaderError struct{ err error }

func (e *proxyHeaderError) Error() string { return e.err.Error() }
func (e *proxyHeaderError) Unwrap() error { return e.err }

// readHeader takes the header off the connection, until limit.
func (p *proxied) readHeader(limit time.Time) error {
	_ = p.Conn.SetReadDeadline(limit) // of a closed connection: Read says so
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

// unmapped writes IPv4 networks as such, also where they are a part of ::ffff:0:0/96.
func unmapped(list []netip.Prefix) []netip.Prefix {
	list = slices.Clone(list)
	for i, p := range list {
		if p.Addr().Is4In6() && p.Bits() >= 96 {
			list[i] = netip.PrefixFrom(p.Addr().Unmap(), p.Bits()-96)
		}
	}
	return list
}

// wrap makes of an accepted connection what has to be read before TLS.
func (m *Mux) wrap(c net.Conn) net.Conn {
	if len(m.cfg.ProxyFrom) > 0 && m.sendsProxy(c.RemoteAddr()) {
		c = &proxied{Conn: c}
	}
	if m.plain != nil {
		c = &peeked{Conn: c}
	}
	return c
}

// sendsProxy says whether connections from there have to begin with a PROXY header.
func (m *Mux) sendsProxy(from net.Addr) bool {
	tcp, ok := from.(*net.TCPAddr)
	if !ok {
		return false
	}
	addr := tcp.AddrPort().Addr().Unmap().WithZone("")
	return slices.ContainsFunc(m.cfg.ProxyFrom, func(p netip.Prefix) bool { return p.Contains(addr) })
}

// readProxy reads the PROXY header of a connection that has to have one.
func (m *Mux) readProxy(sh *shaking, limit time.Time) error {
	c := sh.raw
	if p, ok := c.(*peeked); ok {
		c = p.Conn
	}
	p, ok := c.(*proxied)
	if !ok {
		return nil
	}
	if err := p.readHeader(limit); err != nil {
		return err
	}
	m.shakes.move(sh, sourceOf(p.RemoteAddr()))
	return nil
}
