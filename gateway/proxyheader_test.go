// SPDX-License-Identifier: MPL-2.0

package gateway

import (
	"bytes"
	"crypto/tls"
	"errors"
	"io"
	"net"
	"net/netip"
	"strings"
	"testing"
	"time"
)

// proxyHeader makes a header of these parts.
func proxyHeader(versionCommand, familyTransport byte, rest ...byte) []byte {
	return append([]byte(proxySignature), append([]byte{versionCommand, familyTransport, byte(len(rest) >> 8), byte(len(rest))}, rest...)...)
}

func TestReadProxyHeader(t *testing.T) {
	v4 := []byte{192, 0, 2, 1, 198, 51, 100, 1, 0x30, 0x39, 0x01, 0xbb}
	ip6 := netip.MustParseAddr("2001:db8::1").As16()
	mapped := netip.MustParseAddr("::ffff:192.0.2.7").As16()
	v6 := append(append(ip6[:], ip6[:]...), 0, 1, 0, 2)
	v4in6 := append(append(mapped[:], mapped[:]...), 0, 1, 0, 2)
	tlv := []byte{4, 0, 2, 9, 9}
	for _, tt := range []struct {
		name   string
		in     []byte
		source string // empty: none
		err    string // part of it; empty: none
	}{
		{"IPv4", proxyHeader(0x21, 0x11, v4...), "192.0.2.1:12345", ""},
		{"IPv4 with TLVs", proxyHeader(0x21, 0x11, append(bytes.Clone(v4), tlv...)...), "192.0.2.1:12345", ""},
		{"IPv6", proxyHeader(0x21, 0x21, v6...), "[2001:db8::1]:1", ""},
		{"IPv4 in IPv6", proxyHeader(0x21, 0x21, v4in6...), "192.0.2.7:1", ""},
		{"socket in the file system", proxyHeader(0x21, 0x31, make([]byte, 216)...), "", ""},
		{"not said", proxyHeader(0x21, 0), "", ""},
		{"not said, with TLVs", proxyHeader(0x21, 0, tlv...), "", ""},
		{"LOCAL", proxyHeader(0x20, 0), "", ""},
		{"LOCAL with addresses", proxyHeader(0x20, 0x11, v4...), "", ""},
		{"LOCAL of a family that is not known", proxyHeader(0x20, 0xff), "", ""},
		{"version 1", proxyHeader(0x11, 0x11, v4...), "", "version 1"},
		{"other command", proxyHeader(0x22, 0x11, v4...), "", "command 2"},
		{"UDP", proxyHeader(0x21, 0x12, v4...), "", "family 1 with transport 2"},
		{"other family", proxyHeader(0x21, 0x41, v4...), "", "family 4"},
		{"short IPv4", proxyHeader(0x21, 0x11, v4[:11]...), "", "too few"},
		{"short IPv6", proxyHeader(0x21, 0x21, v4...), "", "too few"},
		{"as long as it may be", proxyHeader(0x21, 0x11, append(bytes.Clone(v4), make([]byte, maxProxyHeader-proxyFixed-12)...)...), "192.0.2.1:12345", ""},
		{"too long", proxyHeader(0x21, 0x11, make([]byte, maxProxyHeader-proxyFixed+1)...), "", "at most 4096"},
		{"text version", []byte("PROXY TCP4 192.0.2.1 192.0.2.2 1 2\r\n"), "", "PROXY protocol"},
		{"hello", helloFor(t, "x.example"), "", "does not begin with a PROXY header of version 2 but is a TLS hello"},
		{"nothing like it", []byte("\r\n\r\nx"), "", "does not begin with"},
	} {
		source, size, err := readProxyHeader(append(bytes.Clone(tt.in), "rest"...))
		switch {
		case tt.err == "" && (err != nil || size != len(tt.in)), tt.err != "" && (err == nil || !strings.Contains(err.Error(), tt.err)):
			t.Errorf("%s: %d of %d bytes, %v; want %q", tt.name, size, len(tt.in), err, tt.err)
		case tt.source == "" && source.IsValid() || tt.source != "" && source.String() != tt.source:
			t.Errorf("%s: source %v", tt.name, source)
		}
		for n := range len(tt.in) {
			if _, _, err := readProxyHeader(tt.in[:n]); err != ErrNeedMore && tt.err == "" {
				t.Errorf("%s: after %d bytes: %v", tt.name, n, err)
			}
		}
	}
}

func TestAppendProxyHeader(t *testing.T) {
	for _, tt := range [][3]string{
		{"192.0.2.1:7", "198.51.100.1:443", "192.0.2.1:7"},
		{"[2001:db8::1]:7", "[2001:db8::2]:443", "[2001:db8::1]:7"},
		{"[::ffff:192.0.2.1]:7", "198.51.100.1:443", "192.0.2.1:7"},
		{"192.0.2.1:7", "[2001:db8::2]:443", "192.0.2.1:7"},
		{"[fe80::1%eth0]:7", "[fe80::2%eth0]:443", "[fe80::1]:7"},
	} {
		b := appendProxyHeader([]byte("x"), netip.MustParseAddrPort(tt[0]), netip.MustParseAddrPort(tt[1]))
		if source, size, err := readProxyHeader(b[1:]); err != nil || size != len(b)-1 || source.String() != tt[2] {
			t.Errorf("%v: %v, %d, %v", tt, source, size, err)
		}
	}
	b := appendProxyHeader(nil, netip.AddrPort{}, netip.AddrPort{})
	if source, size, err := readProxyHeader(b); err != nil || size != len(b) || source.IsValid() {
		t.Errorf("%v, %d, %v", source, size, err)
	}
}

func FuzzReadProxyHeader(f *testing.F) {
	f.Add(appendProxyHeader(nil, netip.MustParseAddrPort("192.0.2.1:7"), netip.MustParseAddrPort("198.51.100.1:443")))
	f.Add(appendProxyHeader(nil, netip.MustParseAddrPort("[2001:db8::1]:7"), netip.MustParseAddrPort("[2001:db8::2]:443")))
	f.Add(proxyHeader(0x21, 0x31, make([]byte, 220)...))
	f.Add(proxyHeader(0x20, 0))
	f.Add([]byte("PROXY TCP4 192.0.2.1 192.0.2.2 1 2\r\n"))
	f.Fuzz(func(t *testing.T, in []byte) {
		source, size, err := readProxyHeader(in)
		if err != nil {
			if source.IsValid() || err == ErrNeedMore && len(in) >= maxProxyHeader {
				t.Fatal(source, size, err)
			}
			return
		}
		if size < proxyFixed || size > min(len(in), maxProxyHeader) {
			t.Fatalf("size %d of %d", size, len(in))
		}
		for n := range size {
			if _, _, err := readProxyHeader(in[:n]); err != ErrNeedMore {
				t.Fatalf("the first %d bytes: %v", n, err)
			}
		}
		if source.IsValid() { // what it says can be said again
			again, _, err := readProxyHeader(appendProxyHeader(nil, source, source))
			if err != nil || again.Port() != source.Port() || again.Addr() != source.Addr() {
				t.Fatal(source, again, err)
			}
		}
	})
}

// proxied connects from one address of this machine and says a header first.
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
	return appendProxyHeader(nil, netip.MustParseAddrPort(source), netip.MustParseAddrPort("198.51.100.1:443"))
}

// testProxyProtocolIn has a balancer, 127.0.0.2, in front of the gateway.
func testProxyProtocolIn(t *testing.T, e Engine) {
	var access syncBuffer
	p := start(t, Config{Engine: e, AccessLog: &access}, Route{Match: "in.example", To: []string{upstream(t, named("srv1"))}})
	p.side.SetPolicy(Policy{Deny: prefixes(t, "192.0.2.66/32", "127.0.0.2/32"), MaxPerSource: 1, ProxyFrom: prefixes(t, "127.0.0.2/32")})
	served := func(c *net.TCPConn) error {
		tc := tls.Client(c, &tls.Config{ServerName: "in.example", InsecureSkipVerify: true})
		_, err := io.ReadFull(tc, make([]byte, 4))
		return err
	}
	for _, header := range [][]byte{headerFrom("192.0.2.1:7"), headerFrom("[2001:db8::1]:7"), proxyHeader(0x20, 0), proxyHeader(0x20, 0)} {
		if err := served(p.proxied(t, "127.0.0.2", header)); err != nil {
			t.Errorf("% x: %v", header, err)
		}
	}
	if st := p.side.Stats(); st.Sources != 2 || st.Active != 4 {
		t.Errorf("%+v", st)
	}
	slow := p.proxied(t, "127.0.0.2", nil)
	for _, b := range append(headerFrom("192.0.2.2:7"), helloFor(t, "in.example")...) {
		if _, err := slow.Write([]byte{b}); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := io.ReadFull(slow, make([]byte, 5)); err != nil {
		t.Error("byte by byte:", err)
	}
	for _, bad := range []struct {
		local  string
		header []byte
	}{
		{"127.0.0.2", headerFrom("192.0.2.66:7")}, // denied
		{"127.0.0.2", headerFrom("192.0.2.1:8")},  // source_limit
		{"127.0.0.2", nil},                        // proxy_header: none
		{"127.0.0.2", proxyHeader(0x21, 0x12, make([]byte, 12)...)},
		{"127.0.0.1", headerFrom("192.0.2.3:7")}, // not_tls: nobody trusts it
	} {
		if err := served(p.proxied(t, bad.local, bad.header)); err == nil {
			t.Errorf("from %s with % x: served", bad.local, bad.header)
		}
	}
	header := headerFrom("192.0.2.9:7")
	for n := range len(header) + 1 {
		c := p.proxied(t, "127.0.0.2", header[:n])
		c.CloseWrite()
		if _, err := c.Read(make([]byte, 1)); err != io.EOF {
			t.Errorf("after %d bytes: %v", n, err)
		}
	}
	p.stop()
	p.refused(t, map[Reason]uint64{ReasonDenied: 1, ReasonSourceLimit: 1, ReasonProxyHeader: 2, ReasonNotTLS: 1, ReasonHelloCut: uint64(len(header) + 1)})
	if n := p.side.Stats().Sources; n != 0 {
		t.Errorf("%d sources are left", n)
	}
	for _, want := range []string{`"remote":"192.0.2.1:7","sni":"in.example"`, `"remote":"[2001:db8::1]:7","sni"`, `"remote":"127.0.0.2:`, `"remote":"192.0.2.66:7"`} {
		if !strings.Contains(access.String(), want) {
			t.Errorf("the access log lacks %s:\n%s", want, access.String())
		}
	}
}

// proxyTLS is a TLS server that wants a PROXY header and says what address it names.
func proxyTLS(t *testing.T) string {
	cert := testCert(t)
	addr, _ := rawUpstream(t, func(c *net.TCPConn) {
		b := append(make([]byte, 0, 256), proxySignature[0]) // rawUpstream has read one byte
		for {
			source, size, err := readProxyHeader(b)
			if err == nil {
				tc := tls.Server(&readFirst{c, b[size:]}, &tls.Config{Certificates: []tls.Certificate{cert}})
				tc.Write([]byte(source.String()))
				tc.Close()
				return
			}
			n, readErr := c.Read(b[len(b):cap(b)])
			b = b[:len(b)+n]
			if !errors.Is(err, ErrNeedMore) || readErr != nil {
				return
			}
		}
	})
	return addr
}

// readFirst gives these bytes before those of the connection.
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

// testProxyProtocolOut has upstreams that want a header: one alone, two that race, and behind a balancer.
func testProxyProtocolOut(t *testing.T, e Engine) {
	one, two := proxyTLS(t), proxyTLS(t)
	p := start(t, Config{Engine: e, FailureMemory: 1},
		Route{Match: "one.example", To: []string{one}, ProxyProtocol: true},
		Route{Match: "two.example", To: []string{deadAddr(t), one, two}, ProxyProtocol: true, Ordered: true})
	p.side.SetPolicy(Policy{ProxyFrom: prefixes(t, "127.0.0.2/32")})
	for _, sni := range []string{"one.example", "two.example", "two.example"} {
		for local, header := range map[string][]byte{"127.0.0.3": nil, "127.0.0.2": headerFrom("192.0.2.1:7")} {
			c := p.proxied(t, local, header)
			want := c.LocalAddr().String()
			if header != nil {
				want = "192.0.2.1:7"
			}
			tc := tls.Client(c, &tls.Config{ServerName: sni, InsecureSkipVerify: true})
			if got, err := io.ReadAll(tc); err != nil || string(got) != want {
				t.Errorf("%s from %s: upstream is told %q, %v; want %s", sni, local, got, err, want)
			}
		}
	}
	p.stop()
	p.refused(t, nil)
}
