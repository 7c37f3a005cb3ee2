// SPDX-License-Identifier: MPL-2.0

package wanfed

import (
	"context"
	"crypto/tls"
	"io"
	"log/slog"
	"net"
	"net/netip"
	"strconv"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/wanfed/wanfed/internal/proxyproto"
	"github.com/wanfed/wanfed/internal/testutil"
	"github.com/wanfed/wanfed/tlsutil"
)

// A peer has at most MaxPerPeer connections, also when they were passed on.
// Other peers are accepted.
func TestMux_MaxPerPeer(t *testing.T) {
	a := newAuthority(t)
	var handed net.Listener
	ln := listen(t)
	b := newMuxFixtureOn(t, a, ln, func(c *MuxConfig) { c.MaxPerPeer = 2 }, func(m *Mux) {
		handed = m.Listener("handed/1", tlsutil.Roles, false)
	})
	open := func(id *tlsutil.Identity, alpn string) (c *tls.Conn, in bool) {
		c, err := tls.Dial("tcp", b.addr, id.ClientConfig("", alpn))
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { c.Close() })
		if alpn == "handed/1" {
			s, err := handed.Accept()
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
	two, in := open(gw, "handed/1")
	if !in {
		t.Fatal("the second connection is refused, want accepted")
	}
	if _, in := open(gw, "all/1"); in {
		t.Error("the third connection is accepted, want refused")
	}
	b.awaitRefusal(t, tooMany)
	if _, in := open(other, "all/1"); !in {
		t.Error("another peer is refused, want accepted")
	}
	for _, c := range []*tls.Conn{one, two} {
		c.Close()
		testutil.Eventually(t, 5*time.Second, func() bool {
			again, in := open(gw, "all/1")
			if in {
				again.Close()
			}
			return in
		}, "room for another")
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
	testutil.Eventually(t, 5*time.Second, func() bool { return strings.Count(b.log.String(), "\n") == 2 }, "two lines")
	if log := b.log.String(); len(log) > 4<<10 || !strings.Contains(log, string(unknownSNI)) ||
		!strings.Contains(log, string(unknownALPN)) {
		t.Errorf("%d bytes: %.1000s", len(log), log)
	}
}

func headerOf(source string) []byte {
	return proxyproto.Append(nil, netip.MustParseAddrPort(source), netip.MustParseAddrPort("198.51.100.1:8300"))
}

// localHeader has the command LOCAL: the connection is the sender's own.
var localHeader = proxyproto.Append(nil, netip.AddrPort{}, netip.AddrPort{})

// proxyFromLoopback requires a PROXY header of connections from this machine.
func proxyFromLoopback(c *MuxConfig) {
	c.ProxyFrom = []netip.Prefix{netip.MustParsePrefix("::ffff:127.0.0.0/104")}
}

// dialWithHeader connects and sends a header.
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
		want   string
	}{
		{headerOf("192.0.2.7:4711"), "192.0.2.7:4711"},
		{headerOf("[2001:db8::7]:4711"), "[2001:db8::7]:4711"},
		{localHeader, ""},
	} {
		var c net.Conn
		if tt.want == "" {
			c = dialWithHeader(t, b.addr, tt.header)
			tt.want = c.LocalAddr().String()
		} else { // byte by byte, followed at once by the ClientHello
			c = dialWithHeader(t, b.addr)
			for _, x := range tt.header {
				c.Write([]byte{x})
			}
		}
		if err := tls.Client(c, cfg).Handshake(); err != nil {
			t.Fatal(err)
		}
		if got := <-remote; got != tt.want {
			t.Errorf("remote address %s, want %s", got, tt.want)
		}
		if line := "remote=" + strconv.Quote(tt.want); !strings.Contains(log.String(), line) && !strings.Contains(log.String(), strings.ReplaceAll(line, `"`, "")) {
			t.Errorf("the log lacks %s:\n%s", line, log)
		}
	}
	if s := b.m.Stats(); len(s.Refused) != 0 {
		t.Errorf("Refused = %v, want none", s.Refused)
	}
}

func TestMux_ProxyRefusals(t *testing.T) {
	testutil.Cluster(t)
	a := newAuthority(t)
	good := headerOf("192.0.2.7:4711")
	hello := func(t *testing.T, c net.Conn) {
		tls.Client(c, a.server("srv2", "dc1").ClientConfig("srv1.server.dc1.wanfed", "all/1")).Handshake()
	}
	for _, tt := range []struct {
		name   string
		header []byte
		then   func(*testing.T, net.Conn) // nil: nothing more is sent
		from   string                     // network that must send a header; empty: loopback
		why    refusal
		log    string
	}{
		{"none", nil, hello, "", proxyMissing, "it does not begin with a PROXY header of version 2"},
		{"text version", []byte("PROXY TCP4 192.0.2.1 192.0.2.2 1 2\r\n"), hello, "", proxyMissing, "it does not begin with"},
		{"command", append([]byte(proxyproto.Signature), 0x22, 0x11, 0, 0), hello, "", proxyMissing, "command 2"},
		{"short", append([]byte(proxyproto.Signature), 0x21, 0x11, 0, 3, 1, 2, 3), hello, "", proxyMissing, "too few"},
		{"oversize", append([]byte(proxyproto.Signature), 0x21, 0x11, 0xff, 0xff), hello, "", proxyMissing, "at most 4096"},
		{"silent", nil, nil, "", tooSlow, "127.0.0.1:"},
		{"half", good[:20], nil, "", tooSlow, "127.0.0.1:"},
		{"silent behind it", good, nil, "", tooSlow, "192.0.2.7:4711"},
		{"cut", good[:20], func(_ *testing.T, c net.Conn) { c.(*net.TCPConn).CloseWrite() }, "", hungUp, ""},
		{"plain text behind it", good, func(_ *testing.T, c net.Conn) { io.WriteString(c, "GET / HTTP/1.1\r\n\r\n") }, "",
			plainText, "192.0.2.7:4711"},
		{"twice", append(headerOf("192.0.2.7:4711"), good...), nil, "", proxyForeign, "192.0.2.7:4711"},
		{"from elsewhere", good, nil, "198.51.100.0/24", proxyForeign, "127.0.0.1:"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			b := newMuxFixture(t, a, proxyFromLoopback, func(c *MuxConfig) {
				if tt.why == tooSlow {
					c.handshakeTimeout = 100 * time.Millisecond
				}
				if tt.name == "silent behind it" { // long enough for the header
					c.handshakeTimeout = 2 * time.Second
				}
				if tt.from != "" {
					c.ProxyFrom = []netip.Prefix{netip.MustParsePrefix(tt.from)}
				}
			})
			began := time.Now()
			c := dialWithHeader(t, b.addr, tt.header)
			if tt.then != nil {
				tt.then(t, c)
			}
			io.Copy(io.Discard, c)
			if took := time.Since(began); took >= 5*time.Second { // the time of a handshake
				t.Errorf("closed after %v, want less than the default HandshakeTimeout", took)
			}
			b.awaitRefusal(t, tt.why)
			if log := b.log.String(); !strings.Contains(log, tt.log) {
				t.Errorf("the log lacks %q:\n%s", tt.log, log)
			}
			if len(b.got) != 0 {
				t.Error("a handler ran")
			}
			if n := b.m.Stats().Handshaking; n != 0 {
				t.Errorf("Handshaking = %d, want 0", n)
			}
		})
	}
}

// The header and the handshake share one timeout.
func TestMux_ProxyHeaderSharesHandshakeTimeout(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
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
		own := &trackedConn{Conn: server}
		sh := m.handshakes.acquire(t.Context(), &proxyConn{Conn: own})
		m.serve(t.Context(), sh, own, m.begin(nameAddr("pipe")))
		if took := time.Since(began); took != 5*time.Second || m.Stats().Refused[string(tooSlow)] != 1 {
			t.Errorf("after %v: %v", took, m.Stats().Refused)
		}
	})
}

// Behind one gateway, a client with many unfinished handshakes displaces its
// own.
func TestMux_ProxyShedsBySource(t *testing.T) {
	testutil.Cluster(t)
	a := newAuthority(t)
	b := newMuxFixture(t, a, proxyFromLoopback, func(c *MuxConfig) { c.maxHandshakes = 3 })
	sources := func() map[netip.Prefix]int {
		b.m.handshakes.mu.Lock()
		defer b.m.handshakes.mu.Unlock()
		return b.m.handshakes.countSourcesLocked()
	}
	one := dialWithHeader(t, b.addr, headerOf("192.0.2.1:1"))
	testutil.Eventually(t, 5*time.Second, func() bool { return sources()[netip.MustParsePrefix("192.0.2.1/32")] == 1 },
		"the first")
	many := []net.Conn{dialWithHeader(t, b.addr, headerOf("192.0.2.2:1")),
		dialWithHeader(t, b.addr, headerOf("192.0.2.2:2"))}
	testutil.Eventually(t, 5*time.Second, func() bool { return sources()[netip.MustParsePrefix("192.0.2.2/32")] == 2 },
		"the others")
	<-time.After(2 * helloGrace) // any of them may be shed now
	c := tls.Client(dialWithHeader(t, b.addr, headerOf("192.0.2.3:1")),
		a.server("srv2", "dc1").ClientConfig("srv1.server.dc1.wanfed", "all/1"))
	if err := c.Handshake(); err != nil {
		t.Fatal(err)
	}
	if !isClosedByPeer(many[0]) {
		t.Error("the older handshake of the source with two is still open, want shed")
	}
	if log := b.log.String(); !strings.Contains(log, "remote=192.0.2.2:1 ") ||
		strings.Contains(log, "remote=192.0.2.1:1") {
		t.Errorf("log:\n%s", log)
	}
	for _, c := range append(many, one) {
		c.Close()
	}
	testutil.Eventually(t, 5*time.Second, func() bool { return len(sources()) == 0 }, "no handshakes left")
}
