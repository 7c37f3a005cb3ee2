// SPDX-License-Identifier: MPL-2.0

package gateway

import (
	"crypto/tls"
	"errors"
	"io"
	"net"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/wanfed/wanfed/internal/proxyproto"
)

// proxied connects from a local address and sends header.
func (r *running) proxied(t testing.TB, local string, header []byte) *net.TCPConn {
	t.Helper()
	d := net.Dialer{LocalAddr: &net.TCPAddr{IP: net.ParseIP(local)}}
	c, err := d.Dial("tcp", r.addr)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	c.SetDeadline(time.Now().Add(20 * time.Second))
	c.Write(header)
	return c.(*net.TCPConn)
}

func headerFrom(source string) []byte {
	return proxyproto.Append(nil, netip.MustParseAddrPort(source), netip.MustParseAddrPort("198.51.100.1:443"))
}

// localHeader is the header of a connection that a load balancer opens itself.
var localHeader = proxyproto.Append(nil, netip.AddrPort{}, netip.AddrPort{})

// 127.0.0.2 is a load balancer in front of the gateway.
func testProxyProtocolIn(t *testing.T, e engineKind) {
	var access syncBuffer
	p := start(t, Config{portable: e == portable, AccessLog: &access},
		Route{Match: "in.example", To: []string{tlsUpstream(t, named("srv1"))}})
	p.listener.SetPolicy(Policy{Deny: prefixes(t, "192.0.2.66/32", "127.0.0.2/32"), MaxPerSource: 1,
		ProxyFrom: prefixes(t, "127.0.0.2/32")})
	served := func(c *net.TCPConn) error {
		tc := tls.Client(c, &tls.Config{ServerName: "in.example", InsecureSkipVerify: true})
		_, err := io.ReadFull(tc, make([]byte, 4))
		return err
	}
	for _, header := range [][]byte{headerFrom("192.0.2.1:7"), headerFrom("[2001:db8::1]:7"), localHeader,
		localHeader} {
		if err := served(p.proxied(t, "127.0.0.2", header)); err != nil {
			t.Errorf("connection with header % x = %v, want nil", header, err)
		}
	}
	if st := p.listener.Stats(); st.Sources != 2 || st.Active != 4 {
		t.Errorf("Stats() = %+v, want 2 sources and 4 active", st)
	}
	slow := p.proxied(t, "127.0.0.2", nil)
	for _, b := range append(headerFrom("192.0.2.2:7"), helloFor(t, "in.example")...) {
		if _, err := slow.Write([]byte{b}); err != nil {
			t.Fatalf("Write() = %v, want nil", err)
		}
	}
	if _, err := io.ReadFull(slow, make([]byte, 5)); err != nil {
		t.Errorf("read after a header byte by byte = %v, want nil", err)
	}
	for _, bad := range []struct {
		local  string
		header []byte
	}{
		{"127.0.0.2", headerFrom("192.0.2.66:7")}, // denied
		{"127.0.0.2", headerFrom("192.0.2.1:8")},  // source_limit
		{"127.0.0.2", nil},                        // proxy_header: none
		{"127.0.0.2", append([]byte(proxyproto.Signature+"\x21\x12\x00\x0c"), make([]byte, 12)...)}, // UDP
		// not_tls: ProxyFrom does not have the sender
		{"127.0.0.1", headerFrom("192.0.2.3:7")},
	} {
		if err := served(p.proxied(t, bad.local, bad.header)); err == nil {
			t.Errorf("connection from %s with header % x = nil, want an error", bad.local, bad.header)
		}
	}
	header := headerFrom("192.0.2.9:7")
	for n := range len(header) + 1 {
		c := p.proxied(t, "127.0.0.2", header[:n])
		c.CloseWrite()
		if _, err := c.Read(make([]byte, 1)); err != io.EOF {
			t.Errorf("Read() after %d bytes of the header and an end = %v, want %v", n, err, io.EOF)
		}
	}
	p.stop()
	p.refused(t, map[Reason]uint64{ReasonDenied: 1, ReasonSourceLimit: 1, ReasonProxyHeader: 2, ReasonNotTLS: 1,
		ReasonHelloCut: uint64(len(header) + 1)})
	if n := p.listener.Stats().Sources; n != 0 {
		t.Errorf("Sources = %d, want 0", n)
	}
	for _, want := range []string{`"remote":"192.0.2.1:7","sni":"in.example"`, `"remote":"[2001:db8::1]:7","sni"`,
		`"remote":"127.0.0.2:`, `"remote":"192.0.2.66:7"`} {
		if !strings.Contains(access.String(), want) {
			t.Errorf("access log = %s, want %s in it", access.String(), want)
		}
	}
}

// proxyTLS starts a TLS server that requires a PROXY header and sends the
// address in the header to its client.
func proxyTLS(t *testing.T) string {
	cert := testCert(t)
	addr, _ := rawUpstream(t, func(c *net.TCPConn) {
		b := append(make([]byte, 0, 256), proxyproto.Signature[0]) // rawUpstream has read one byte
		for {
			source, size, err := proxyproto.Parse(b)
			if err == nil {
				tc := tls.Server(&readFirst{c, b[size:]}, &tls.Config{Certificates: []tls.Certificate{cert}})
				tc.Write([]byte(source.String()))
				tc.Close()
				return
			}
			n, readErr := c.Read(b[len(b):cap(b)])
			b = b[:len(b)+n]
			if !errors.Is(err, proxyproto.ErrNeedMore) || readErr != nil {
				return
			}
		}
	})
	return addr
}

// readFirst is a connection whose first bytes were already read into b.
type readFirst struct {
	net.Conn
	b []byte
}

func (c *readFirst) Read(b []byte) (int, error) {
	if len(c.b) > 0 {
		n := copy(b, c.b)
		c.b = c.b[n:]
		return n, nil
	}
	return c.Conn.Read(b)
}

// Upstreams require a PROXY header: on a route with one address and on a route
// with several, for direct clients and for clients of a load balancer.
func testProxyProtocolOut(t *testing.T, e engineKind) {
	one, two := proxyTLS(t), proxyTLS(t)
	p := start(t, Config{portable: e == portable, ejectFor: 1},
		Route{Match: "one.example", To: []string{one}, ProxyProtocol: true},
		Route{Match: "two.example", To: []string{deadAddr(t), one, two}, ProxyProtocol: true, Ordered: true})
	p.listener.SetPolicy(Policy{ProxyFrom: prefixes(t, "127.0.0.2/32")})
	for _, sni := range []string{"one.example", "two.example", "two.example"} {
		for local, header := range map[string][]byte{"127.0.0.3": nil, "127.0.0.2": headerFrom("192.0.2.1:7")} {
			c := p.proxied(t, local, header)
			want := c.LocalAddr().String()
			if header != nil {
				want = "192.0.2.1:7"
			}
			tc := tls.Client(c, &tls.Config{ServerName: sni, InsecureSkipVerify: true})
			if got, err := io.ReadAll(tc); err != nil || string(got) != want {
				t.Errorf("source in the header for %s from %s = %q, %v; want %s", sni, local, got, err, want)
			}
		}
	}
	p.stop()
	p.refused(t, nil)
}

// Only the addresses in Route.ProxyTo receive a PROXY header.
func testProxyTo(t *testing.T, e engineKind) {
	header, plain := proxyTLS(t), tlsUpstream(t, named("plain"))
	p := start(t, Config{portable: e == portable, ejectFor: 1, Drain: -1},
		Route{Match: "header.example", To: []string{deadAddr(t), header, plain}, ProxyTo: []string{header}, Ordered: true},
		Route{Match: "plain.example", To: []string{deadAddr(t), plain, header}, ProxyTo: []string{header}, Ordered: true},
		Route{Match: "one.example", To: []string{header}, ProxyTo: []string{header}})
	for _, sni := range []string{"header.example", "plain.example", "one.example"} {
		c := p.proxied(t, "127.0.0.3", nil)
		want := c.LocalAddr().String()
		if sni == "plain.example" {
			want = "plain"
		}
		got := make([]byte, len(want))
		tc := tls.Client(c, &tls.Config{ServerName: sni, InsecureSkipVerify: true})
		if _, err := io.ReadFull(tc, got); err != nil || string(got) != want {
			t.Errorf("answer for %s = %q, %v; want %q", sni, got, err, want)
		}
		c.Close()
	}
	p.stop()
	p.refused(t, nil)
}

func TestReadProxyHeader_Missing(t *testing.T) {
	s := &session{listener: NewListener("lan"), opening: &opening{proxyHeader: true}}
	err := s.readProxyHeader(helloFor(t, "x.example"), time.Now())
	if err == nil ||
		!strings.Contains(err.Error(), "does not begin with a PROXY header of version 2 but is a TLS hello") {
		t.Errorf("readProxyHeader() = %v, want that it is a TLS hello", err)
	}
}
