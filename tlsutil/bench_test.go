// SPDX-License-Identifier: MPL-2.0

package tlsutil_test

import (
	"crypto/tls"
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
	ca := tlstest.NewCA(b)
	srv, cli := ca.Identity(b, tlsutil.RoleServer, "srv1", "dc1"), ca.Identity(b, tlsutil.RoleServer, "srv1", "dc2")
	addr := serveByte(b, srv.ServerConfig("a"))
	b.ReportAllocs()
	wire := 0
	for b.Loop() {
		wire += readByte(b, addr, cli.ClientConfig("server.dc1.wanfed", "a"))
	}
	b.ReportMetric(float64(wire)/float64(b.N), "B(wire)/op")
	b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "handshakes/s")
}

// serveByte listens and sends one byte on each connection.
func serveByte(tb testing.TB, cfg *tls.Config) (addr string) {
	ln, err := tls.Listen("tcp", "127.0.0.1:0", cfg)
	if err != nil {
		tb.Fatal(err)
	}
	done := make(chan struct{})
	tb.Cleanup(func() { ln.Close(); <-done })
	go func() {
		defer close(done)
		for {
			c, err := ln.Accept()
			if err != nil {
				return
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
func readByte(tb testing.TB, addr string, cfg *tls.Config) (wire int) {
	raw, err := net.Dial("tcp", addr)
	if err != nil {
		tb.Fatal(err)
	}
	c := tls.Client(countConn{raw, &wire}, cfg)
	defer c.Close()
	c.SetDeadline(time.Now().Add(10 * time.Second))
	if _, err := c.Read(make([]byte, 1)); err != nil {
		tb.Fatal(err)
	}
	return wire
}
