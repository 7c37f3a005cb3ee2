// SPDX-License-Identifier: MPL-2.0

package wanfed

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"slices"
	"strings"
	"time"
)

// attempt is one Dial: what all its hops have in common.
type attempt struct {
	d    *Dialer
	dc   string
	sni  string
	alpn []string
}

// pathConn is the TCP connection below a connection of Dial. It remembers which way it went.
type pathConn struct {
	net.Conn
	dc   string
	hop  Path
	addr string        // that was dialed
	rtt  time.Duration // of the TLS handshake
	took time.Duration // TCP and TLS together
	cork cork
}

// roundTrip estimates the round trip to the server. TCP and TLS together take two, also when a gateway between them connects
// to the next one only after it has seen the ClientHello.
func (p *pathConn) roundTrip() time.Duration { return p.took / 2 }

// pathOf returns the way that a connection of Dial took.
func pathOf(c *tls.Conn) *pathConn {
	p, _ := c.NetConn().(*pathConn)
	return p
}

// hop dials through one hop and records what that told about it.
func (a *attempt) hop(ctx context.Context, hop Path) (*tls.Conn, error) {
	d, start := a.d, time.Now()
	d.paths.update(a.dc, hop, func(s *pathState) { s.Attempts++ })
	conn, err := a.through(ctx, hop)
	now := time.Now()
	switch {
	case err == nil:
		p := pathOf(conn)
		d.paths.worked(a.dc, hop, p.addr, p.roundTrip(), func(s *pathState) { s.RTT = p.rtt })
		d.worked.note(a.dc)
	case errors.Is(context.Cause(ctx), errOvertaken):
		// Not a failure, but evidence if the one that won started later: then this one was slow.
		if now.Sub(start) >= d.cfg.AttemptDelay {
			d.paths.update(a.dc, hop, func(s *pathState) { s.bad = now })
		}
	case ctx.Err() != nil && (now.Sub(start) < d.cfg.AttemptDelay || errors.Is(ctx.Err(), context.Canceled)):
		// The caller gave up before the hop had its time.
	default:
		d.recordFailure(a.dc, hop, err)
	}
	if err != nil {
		d.log.Debug("dial failed", "sni", a.sni, "gateway", hop.Addr, "err", err)
	}
	return conn, err
}

func (d *Dialer) recordFailure(dc string, hop Path, err error) {
	d.paths.failed(dc, hop, err, func(s *pathState) { s.Failures++ })
}

// echoed records a round trip on an open connection of Dial: proof that its path works.
func (d *Dialer) echoed(p *pathConn, rtt time.Duration) {
	if p != nil {
		d.paths.worked(p.dc, p.hop, "", rtt, nil)
	}
}

// Broke records that a connection of Dial, which had been good, failed by its path's fault, such as falling silent: the
// next dial tries another hop first.
func (d *Dialer) ReportFailure(c *tls.Conn, err error) {
	if p := pathOf(c); p != nil {
		d.recordFailure(p.dc, p.hop, err)
	}
}

// through dials hop's address, or all addresses of its name, staggered.
func (a *attempt) through(ctx context.Context, hop Path) (*tls.Conn, error) {
	host, port, err := net.SplitHostPort(hop.Addr)
	if err != nil {
		return nil, fmt.Errorf("%q is no host:port: %w", hop.Addr, err)
	}
	if net.ParseIP(strings.SplitN(host, "%", 2)[0]) != nil {
		return a.address(ctx, hop, hop.Addr)
	}
	addrs, err := a.resolve(ctx, host, port, a.d.paths.lastAddr(a.dc, hop.Addr))
	if err != nil {
		return nil, err
	}
	conn, won, errs := race(ctx, len(addrs), a.d.cfg.AttemptDelay,
		func(ctx context.Context, i int) (*tls.Conn, error) { return a.address(ctx, hop, addrs[i]) }, closeConn)
	if !won {
		return nil, errors.Join(errs...)
	}
	return conn, nil
}

// resolve gives ip:port for each address of host: the one that worked last first, then the families in turn (RFC 8305
// section 4). The one that worked last stays, as the last, when the name has it no more: old and new overlap.
func (a *attempt) resolve(ctx context.Context, host, port, last string) ([]string, error) {
	start := time.Now()
	ips, err := a.d.names.ips(ctx, host)
	if err != nil {
		return nil, &stageError{stageResolve, host, time.Since(start), err}
	}
	addrs := sortAddrs(ips, port, last)
	if last != "" && addrs[0] != last {
		addrs = append(addrs, last)
	}
	return addrs, nil
}

func sortAddrs(ips []net.IP, port, last string) []string {
	var v4, v6 []string
	for _, ip := range ips {
		s := net.JoinHostPort(ip.String(), port)
		if ip.To4() != nil {
			v4 = append(v4, s)
		} else {
			v6 = append(v6, s)
		}
	}
	var out []string
	for i := range max(len(v4), len(v6)) {
		if i < len(v6) {
			out = append(out, v6[i])
		}
		if i < len(v4) {
			out = append(out, v4[i])
		}
	}
	if i := slices.Index(out, last); i > 0 {
		out = slices.Insert(slices.Delete(out, i, i+1), 0, last)
	}
	return out
}

// address does TCP and TLS with one address.
func (a *attempt) address(ctx context.Context, hop Path, addr string) (*tls.Conn, error) {
	start := time.Now()
	fail := func(at stage, err error) error {
		e := &stageError{at, addr, time.Since(start), err}
		if addr == hop.Addr {
			e.addr = ""
		}
		return e
	}
	ctx, cancel := context.WithTimeout(ctx, a.d.cfg.AttemptTimeout)
	defer cancel()
	raw, err := a.d.cfg.DialTCP(ctx, addr)
	if err != nil {
		return nil, fail(stageConnect, err)
	}
	cfg := a.d.cfg.Identity.ClientConfig(a.sni, a.alpn...)
	cfg.DynamicRecordSizingDisabled = true // a packet, and the few queued behind it, in one record
	path := &pathConn{Conn: raw, dc: a.dc, hop: hop, addr: addr}
	conn := tls.Client(path, cfg)
	connected := time.Now()
	if err := conn.HandshakeContext(ctx); err != nil {
		raw.Close()
		return nil, fail(stageHandshake, err)
	}
	path.rtt, path.took = time.Since(connected), time.Since(start)
	if p := conn.ConnectionState().NegotiatedProtocol; !slices.Contains(a.alpn, p) {
		raw.Close()
		return nil, fail(stageProtocol, fmt.Errorf("the server chose protocol %q, none of %q", p, a.alpn))
	}
	return conn, nil
}

// closeLimit bounds how long a TLS close_notify may wait for a peer that does not read.
const closeLimit = time.Second

// closeConn closes c properly if that takes no longer than closeLimit, else at once.
func closeConn(c *tls.Conn) {
	t := time.AfterFunc(closeLimit, func() { c.NetConn().Close() })
	defer t.Stop()
	c.Close()
}
