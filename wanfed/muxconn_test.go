// SPDX-License-Identifier: MPL-2.0

package wanfed

import (
	"bytes"
	"context"
	"crypto/tls"
	"io"
	"log/slog"
	"maps"
	"net"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/wanfed/wanfed/internal/proxyproto"
	"github.com/wanfed/wanfed/internal/testutil"
	"github.com/wanfed/wanfed/tlsutil"
)

// A peer has at most MaxPerPeer connections, including the connections that a
// Listener returned. Other peers are accepted.
func TestMux_MaxPerPeer(t *testing.T) {
	a := newAuthority(t)
	var passed net.Listener // connections with "passed/1" are passed to the test
	ln := listen(t)
	b := newMuxFixtureOn(t, a, ln, func(c *MuxConfig) { c.MaxPerPeer = 2 }, func(m *Mux) {
		passed = m.Listener("passed/1", tlsutil.Roles, false)
	})
	open := func(id *tlsutil.Identity, alpn string) (c *tls.Conn, accepted bool) {
		c, err := tls.Dial("tcp", b.addr, id.ClientConfig("", alpn))
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { c.Close() })
		if alpn == "passed/1" {
			s, err := passed.Accept()
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { s.Close() })
			s.Write([]byte("hi"))
			go func() {
				io.Copy(io.Discard, s)
				s.Close()
			}()
		}
		c.SetDeadline(time.Now().Add(5 * time.Second))
		_, err = io.ReadFull(c, make([]byte, 2))
		return c, err == nil
	}
	gw, other := a.identity(tlsutil.RoleGateway, "gw1", "dc2"), a.identity(tlsutil.RoleGateway, "gw2", "dc2")
	one, _ := open(gw, "all/1")
	two, accepted := open(gw, "passed/1")
	if !accepted {
		t.Fatal("the second connection is refused, want accepted")
	}
	if _, accepted := open(gw, "all/1"); accepted {
		t.Error("the third connection is accepted, want refused")
	}
	b.awaitRefusal(t, refusedPeerLimit)
	if _, accepted := open(other, "all/1"); !accepted {
		t.Error("another peer is refused, want accepted")
	}
	for _, c := range []*tls.Conn{one, two} {
		c.Close()
		testutil.Eventually(t, 5*time.Second, func() bool {
			again, accepted := open(gw, "all/1")
			if accepted {
				again.Close()
			}
			return accepted
		}, "a connection accepted after another was closed")
	}
	b.stop()
	if n := len(b.m.peers.open); n > 0 {
		t.Errorf("%d peers are counted after Run, want 0", n)
	}
}

// An unauthenticated peer cannot cause long log lines.
func TestRefusals_ClipPeerText(t *testing.T) {
	a := newAuthority(t)
	b := newMuxFixture(t, a)
	for _, cfg := range []*tls.Config{
		{ServerName: strings.Repeat("x", 15<<10), NextProtos: []string{"all/1"}},
		{NextProtos: strings.Split(strings.Repeat(strings.Repeat("x", 250)+" ", 60)+"y", " ")},
	} {
		cfg.InsecureSkipVerify = true
		if c, err := tls.Dial("tcp", b.addr, cfg); err == nil {
			c.Close()
			t.Error("Dial() succeeds, want an error")
		}
	}
	testutil.Eventually(t, 5*time.Second, func() bool { return strings.Count(b.log.String(), "\n") == 2 },
		"two log lines")
	if log := b.log.String(); len(log) > 4<<10 || !strings.Contains(log, refusedUnknownSNI.id) ||
		!strings.Contains(log, refusedUnknownALPN.id) {
		t.Errorf("log = %d bytes: %.1000s\nwant at most 4 KiB with %s and %s",
			len(log), log, refusedUnknownSNI, refusedUnknownALPN)
	}
}

// headerOf returns a PROXY header for a connection from source.
func headerOf(source string) []byte {
	return proxyproto.Append(nil, netip.MustParseAddrPort(source), netip.MustParseAddrPort("198.51.100.1:8300"))
}

// localHeader is a PROXY header with the command LOCAL: the sender opened the
// connection for itself.
var localHeader = proxyproto.Append(nil, netip.AddrPort{}, netip.AddrPort{})

// proxyFromLoopback requires a PROXY header of connections from loopback.
func proxyFromLoopback(c *MuxConfig) {
	c.ProxyFrom = []netip.Prefix{netip.MustParsePrefix("::ffff:127.0.0.0/104")}
}

// dialWithHeader connects to addr and sends the parts of a header.
func dialWithHeader(t *testing.T, addr string, header ...[]byte) net.Conn {
	t.Helper()
	c, err := net.Dial("tcp", addr)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	c.SetDeadline(time.Now().Add(10 * time.Second))
	for _, b := range header {
		c.Write(b)
	}
	return c
}

// The address in the PROXY header is the connection's RemoteAddr, for handlers
// and in the log.
func TestMux_ProxySource(t *testing.T) {
	a := newAuthority(t)
	remote, log := make(chan string, 1), &logBuffer{}
	b := newMuxFixtureOn(t, a, listen(t), func(c *MuxConfig) {
		proxyFromLoopback(c)
		c.Logger = slog.New(slog.NewTextHandler(log, &slog.HandlerOptions{Level: slog.LevelDebug}))
	}, func(m *Mux) {
		m.Handle("where/1", tlsutil.Roles, false, func(_ context.Context, c *tls.Conn, _ tlsutil.Peer) {
			remote <- c.RemoteAddr().String()
			c.Close()
		})
	})
	cfg := a.server("srv2", "dc2").ClientConfig("srv1.server.dc1.wanfed", "where/1")
	for _, tt := range []struct {
		header []byte
		want   string // empty: the address of the sender
	}{
		{headerOf("192.0.2.7:4711"), "192.0.2.7:4711"},
		{headerOf("[2001:db8::7]:4711"), "[2001:db8::7]:4711"},
		{localHeader, ""},
	} {
		var c net.Conn
		if tt.want == "" {
			c = dialWithHeader(t, b.addr, tt.header)
			tt.want = c.LocalAddr().String()
		} else { // one byte at a time, followed at once by the ClientHello
			c = dialWithHeader(t, b.addr)
			for _, x := range tt.header {
				c.Write([]byte{x})
			}
		}
		if err := tls.Client(c, cfg).Handshake(); err != nil {
			t.Fatal(err)
		}
		if got := <-remote; got != tt.want {
			t.Errorf("RemoteAddr() = %s, want %s", got, tt.want)
		}
		if got := strings.ReplaceAll(log.String(), `"`, ""); !strings.Contains(got, "remote="+tt.want) {
			t.Errorf("log = %s\nwant remote=%s", got, tt.want)
		}
	}
	if s := b.m.Stats(); len(s.Refused) != 0 {
		t.Errorf("Stats().Refused = %v, want none", s.Refused)
	}
}

// A missing, invalid or unexpected PROXY header is refused with a reason of its
// own. The log has the address of the client after a valid header, and the
// address of the sender otherwise.
func TestMux_ProxyRefusals(t *testing.T) {
	testutil.Cluster(t)
	a := newAuthority(t)
	good := headerOf("192.0.2.7:4711")
	hello := func(c net.Conn) {
		tls.Client(c, a.server("srv2", "dc1").ClientConfig("srv1.server.dc1.wanfed", "all/1")).Handshake()
	}
	plainText := func(c net.Conn) { io.WriteString(c, "GET / HTTP/1.1\r\n\r\n") }
	closeWrite := func(c net.Conn) { c.(*net.TCPConn).CloseWrite() }
	for _, tt := range []struct {
		name   string
		header []byte
		then   func(net.Conn) // what the client does after the header; nil: nothing
		from   string         // network that must send a header; empty: loopback
		want   *refusal
		log    string // part of the log line
	}{
		{"none", nil, hello, "", refusedNoProxyHeader, "it does not begin with a PROXY header of version 2"},
		{"text version", []byte("PROXY TCP4 192.0.2.1 192.0.2.2 1 2\r\n"), hello, "",
			refusedNoProxyHeader, "it does not begin with"},
		{"command", append([]byte(proxyproto.Signature), 0x22, 0x11, 0, 0), hello, "", refusedNoProxyHeader,
			"command 2"},
		{"short", append([]byte(proxyproto.Signature), 0x21, 0x11, 0, 3, 1, 2, 3), hello, "",
			refusedNoProxyHeader, "too few"},
		{"oversize", append([]byte(proxyproto.Signature), 0x21, 0x11, 0xff, 0xff), hello, "",
			refusedNoProxyHeader, "at most 4096"},
		{"silent", nil, nil, "", refusedTimeout, "127.0.0.1:"},
		{"half", good[:20], nil, "", refusedTimeout, "127.0.0.1:"},
		{"silent after the header", good, nil, "", refusedTimeout, "192.0.2.7:4711"},
		{"cut", good[:20], closeWrite, "", refusedClosed, ""},
		{"plain text after the header", good, plainText, "", refusedPlainText, "192.0.2.7:4711"},
		{"twice", append(headerOf("192.0.2.7:4711"), good...), nil, "", refusedProxyHeader, "192.0.2.7:4711"},
		{"from another network", good, nil, "198.51.100.0/24", refusedProxyHeader, "127.0.0.1:"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			b := newMuxFixture(t, a, proxyFromLoopback, func(c *MuxConfig) {
				if tt.want == refusedTimeout {
					c.handshakeTimeout = 100 * time.Millisecond
				}
				if tt.name == "silent after the header" { // long enough for the header
					c.handshakeTimeout = 2 * time.Second
				}
				if tt.from != "" {
					c.ProxyFrom = []netip.Prefix{netip.MustParsePrefix(tt.from)}
				}
			})
			began := time.Now()
			c := dialWithHeader(t, b.addr, tt.header)
			if tt.then != nil {
				tt.then(c)
			}
			io.Copy(io.Discard, c)
			if took := time.Since(began); took >= 5*time.Second { // the default handshakeTimeout
				t.Errorf("connection closed after %v, want less than 5 s", took)
			}
			b.awaitRefusal(t, tt.want)
			if log := b.log.String(); !strings.Contains(log, tt.log) {
				t.Errorf("log = %s\nwant %q", log, tt.log)
			}
			if n := len(b.peers); n != 0 {
				t.Errorf("%d handlers ran, want 0", n)
			}
			if n := b.m.Stats().Handshaking; n != 0 {
				t.Errorf("Handshaking = %d, want 0", n)
			}
		})
	}
}

// A connection from a gateway may begin with a PROXY header. A header from any
// other address is refused.
func TestMux_ProxyFromGateway(t *testing.T) {
	testutil.Cluster(t)
	a := newAuthority(t)
	id := a.server("srv2", "dc1").ClientConfig("srv1.server.dc1.wanfed", "all/1")
	remote := func(b *muxFixture, header []byte) error {
		c := dialWithHeader(t, b.addr, header)
		tc := tls.Client(c, id)
		_, err := io.ReadFull(tc, make([]byte, 2))
		return err
	}
	gateway := newMuxFixture(t, a, func(c *MuxConfig) {
		c.GatewayAt = func(_ context.Context, addr netip.Addr) bool { return addr == netip.MustParseAddr("127.0.0.1") }
	})
	for name, header := range map[string][]byte{"none": nil, "LOCAL": localHeader, "PROXY": headerOf("192.0.2.7:1")} {
		if err := remote(gateway, header); err != nil {
			t.Errorf("connection of a gateway, header %s: %v, want nil", name, err)
		}
	}
	if s := gateway.m.Stats(); len(s.Refused) != 0 {
		t.Errorf("Stats().Refused = %v, want none", s.Refused)
	}
	other := newMuxFixture(t, a, func(c *MuxConfig) {
		c.GatewayAt = func(context.Context, netip.Addr) bool { return false }
	})
	if err := remote(other, nil); err != nil {
		t.Errorf("connection without a header: %v, want nil", err)
	}
	if err := remote(other, headerOf("192.0.2.7:1")); err == nil {
		t.Error("connection with a forged header was served, want refused")
	}
	other.awaitRefusal(t, refusedProxyHeader)
	if log := other.log.String(); strings.Contains(log, "192.0.2.7") || !strings.Contains(log, "remote=127.0.0.1:") {
		t.Errorf("log = %s, want the address of the sender, and not the forged one", log)
	}
}

// Whatever a peer sends first, the Mux reads no byte after a PROXY header, and
// all bytes of a connection without a header remain readable.
func FuzzReadHeader(f *testing.F) {
	f.Add(headerOf("192.0.2.1:7"), true, false)
	f.Add(append(headerOf("[2001:db8::1]:7"), 22, 3, 1), true, false)
	f.Add(localHeader, false, false)
	f.Add([]byte{22, 3, 1, 0, 5}, true, false)
	f.Add([]byte("\r\n"), true, true)
	f.Fuzz(func(t *testing.T, in []byte, permitted, must bool) {
		sender := &net.TCPAddr{IP: net.IPv4(10, 0, 0, 1), Port: 1}
		p := &proxyConn{Conn: &bytesConn{fakeConn{addr: sender}, bytes.NewReader(in)}, must: must}
		err := p.readHeader(time.Time{}, func() bool { return permitted })
		rest, readErr := io.ReadAll(p)
		if readErr != nil {
			t.Fatal(readErr)
		}
		source, size, parseErr := proxyproto.Parse(in)
		isHeader := len(in) > 0 && in[0] == proxyproto.Signature[0]
		switch {
		case !must && len(in) > 0 && !isHeader:
			if err != nil || !bytes.Equal(rest, in) || p.RemoteAddr() != net.Addr(sender) {
				t.Errorf("readHeader() without a header = %v, then %d bytes from %v; want nil, %d, %v", err, len(rest),
					p.RemoteAddr(), len(in), sender)
			}
		case !must && isHeader && !permitted:
			if err != errProxySender {
				t.Errorf("readHeader() of a forged header = %v, want %v", err, errProxySender)
			}
		case parseErr == nil:
			if err != nil || !bytes.Equal(rest, in[size:]) ||
				source.IsValid() && p.RemoteAddr().(*net.TCPAddr).AddrPort() != source {
				t.Errorf("readHeader() = %v, then %d bytes from %v; want nil, %d, %v", err, len(rest), p.RemoteAddr(),
					len(in)-size, source)
			}
		case err == nil:
			t.Errorf("readHeader() of % x = nil, want an error", in)
		}
	})
}

// bytesConn is a connection that delivers given bytes.
type bytesConn struct {
	fakeConn
	r *bytes.Reader
}

func (c *bytesConn) Read(b []byte) (int, error)      { return c.r.Read(b) }
func (c *bytesConn) SetReadDeadline(time.Time) error { return nil }

// The timeout of a handshake counts from the last bytes, here the PROXY header.
func TestMux_TimeoutCountsFromProxyHeader(t *testing.T) {
	testutil.Bubble(t, func(t *testing.T) {
		client, server := net.Pipe()
		defer client.Close()
		m, err := NewMux(MuxConfig{Identity: newAuthority(t).server("srv1", "dc1"), handshakeTimeout: 5 * time.Second})
		if err != nil {
			t.Fatal(err)
		}
		began := time.Now()
		go func() {
			time.Sleep(4 * time.Second)
			client.Write(localHeader)
		}()
		tracked := m.newTrackedConn(server)
		hs := m.handshakes.acquire(t.Context(), &proxyConn{Conn: tracked, must: true})
		m.serve(t.Context(), hs, tracked, m.begin(nameAddr("pipe")))
		if took := time.Since(began); took != 9*time.Second || m.Stats().Refused[refusedTimeout.id] != 1 {
			t.Errorf("serve() took %v, Stats().Refused = %v, want 9 s and one timeout", took, m.Stats().Refused)
		}
	})
}

// A client with many unfinished handshakes displaces its own handshakes, also
// if it shares a gateway with other clients.
func TestMux_ProxyShedsBySource(t *testing.T) {
	testutil.Cluster(t)
	a := newAuthority(t)
	b := newMuxFixture(t, a, proxyFromLoopback, func(c *MuxConfig) { c.maxHandshakes = 3 })
	sources := func() map[netip.Prefix]int {
		b.m.handshakes.mu.Lock()
		defer b.m.handshakes.mu.Unlock()
		return maps.Clone(b.m.handshakes.perSource)
	}
	one := dialWithHeader(t, b.addr, headerOf("192.0.2.1:1"))
	testutil.Eventually(t, 5*time.Second, func() bool { return sources()[netip.MustParsePrefix("192.0.2.1/32")] == 1 },
		"one handshake of the first client")
	many := []net.Conn{dialWithHeader(t, b.addr, headerOf("192.0.2.2:1")),
		dialWithHeader(t, b.addr, headerOf("192.0.2.2:2"))}
	testutil.Eventually(t, 5*time.Second, func() bool { return sources()[netip.MustParsePrefix("192.0.2.2/32")] == 2 },
		"two handshakes of the second client")
	<-time.After(2 * helloGrace) // all three handshakes are overdue now
	c := tls.Client(dialWithHeader(t, b.addr, headerOf("192.0.2.3:1")),
		a.server("srv2", "dc1").ClientConfig("srv1.server.dc1.wanfed", "all/1"))
	if err := c.Handshake(); err != nil {
		t.Fatal(err)
	}
	if !isClosedByPeer(many[0]) {
		t.Error("the older handshake of the second client is open, want shed")
	}
	if log := b.log.String(); !strings.Contains(log, "remote=192.0.2.2:1 ") ||
		strings.Contains(log, "remote=192.0.2.1:1") {
		t.Errorf("log = %s\nwant a refusal of 192.0.2.2:1 and none of 192.0.2.1:1", log)
	}
	for _, c := range append(many, one) {
		c.Close()
	}
	testutil.Eventually(t, 5*time.Second, func() bool { return len(sources()) == 0 }, "no unfinished handshakes")
}
