// SPDX-License-Identifier: MPL-2.0

package tlsutil_test

import (
	"crypto/tls"
	"errors"
	"math/big"
	"net"
	"testing"
	"time"

	"github.com/wanfed/wanfed/tlsutil"
	"github.com/wanfed/wanfed/tlsutil/tlstest"
)

// countConn counts the bytes that are read from and written to a connection.
type countConn struct {
	net.Conn
	n *int
}

func (c countConn) Read(b []byte) (int, error) {
	n, err := c.Conn.Read(b)
	*c.n += n
	return n, err
}

func (c countConn) Write(b []byte) (int, error) {
	*c.n += len(b)
	return c.Conn.Write(b)
}

// BenchmarkHandshake opens connections on loopback, one after the other, with
// TCP, TLS and one byte from the server. The results include the work of both
// ends.
func BenchmarkHandshake(b *testing.B) {
	for _, bench := range []struct {
		name    string
		guarded bool
		revoked int // serial numbers on the list of the CA
	}{{"unguarded", false, 0}, {"guarded", true, 0}, {"guarded, 500 revoked", true, 500}} {
		b.Run(bench.name, func(b *testing.B) { benchmarkHandshake(b, bench.guarded, bench.revoked) })
	}
}

func benchmarkHandshake(b *testing.B, guarded bool, revoked int) {
	ca := tlstest.NewCA(b)
	srv, cli := ca.Identity(b, tlsutil.RoleServer, "srv1", "dc1"), ca.Identity(b, tlsutil.RoleServer, "srv1", "dc2")
	if revoked > 0 {
		r := tlsutil.RevokeRequest{CA: ca.Pair}
		for n := range revoked {
			r.Serials = append(r.Serials, new(big.Int).Lsh(big.NewInt(int64(n+1)), 100))
		}
		l, err := tlsutil.Revoke(r)
		if err != nil {
			b.Fatal(err)
		}
		if err := errors.Join(srv.AddRevocations(l.PEM()), cli.AddRevocations(l.PEM())); err != nil {
			b.Fatal(err)
		}
	}
	addr := serveByte(b, srv, guarded)
	b.ReportAllocs()
	wire := 0
	for b.Loop() {
		wire += readByte(b, addr, cli, guarded)
	}
	b.ReportMetric(float64(wire)/float64(b.N), "B(wire)/op")
	b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "handshakes/s")
}

// serveByte listens and sends one byte on each connection.
func serveByte(tb testing.TB, srv *tlsutil.Identity, guarded bool) (addr string) {
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		tb.Fatal(err)
	}
	done := make(chan struct{})
	tb.Cleanup(func() { ln.Close(); <-done })
	go func() {
		defer close(done)
		for {
			raw, err := ln.Accept()
			if err != nil {
				return
			}
			g := srv.Accepted(raw)
			c := tls.Server(g, srv.ServerConfig("a"))
			if guarded && c.Handshake() == nil {
				_ = g.Admit(c)
			}
			c.SetDeadline(time.Now().Add(10 * time.Second))
			c.Write([]byte{1}) // the client reports a failure
			c.Close()
		}
	}()
	return ln.Addr().String()
}

// readByte connects to addr and reads one byte. It returns the number of bytes
// that the connection transferred.
func readByte(tb testing.TB, addr string, cli *tlsutil.Identity, guarded bool) (wire int) {
	raw, err := net.Dial("tcp", addr)
	if err != nil {
		tb.Fatal(err)
	}
	g := cli.Dialed(countConn{raw, &wire}, nil)
	c := tls.Client(g, cli.ClientConfig("server.dc1.wanfed", "a"))
	defer c.Close()
	if guarded {
		if err := errors.Join(c.Handshake(), g.Admit(c)); err != nil {
			tb.Fatal(err)
		}
	}
	c.SetDeadline(time.Now().Add(10 * time.Second))
	if _, err := c.Read(make([]byte, 1)); err != nil {
		tb.Fatal(err)
	}
	return wire
}
