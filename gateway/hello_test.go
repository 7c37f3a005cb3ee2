// SPDX-License-Identifier: MPL-2.0

package gateway

import (
	"bytes"
	"context"
	"crypto/tls"
	"encoding/binary"
	"errors"
	"io"
	"net"
	"net/netip"
	"os/exec"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/wanfed/wanfed/gateway/internal/tlsrecord"
)

// scriptConn is a connection whose peer has sent the bytes of in and its end.
// It records the bytes that are written.
type scriptConn struct {
	net.Conn
	in  io.Reader
	out bytes.Buffer
}

func (c *scriptConn) Read(b []byte) (int, error)       { return c.in.Read(b) }
func (c *scriptConn) Write(b []byte) (int, error)      { return c.out.Write(b) }
func (c *scriptConn) Close() error                     { return nil }
func (c *scriptConn) SetDeadline(time.Time) error      { return nil }
func (c *scriptConn) SetReadDeadline(time.Time) error  { return nil }
func (c *scriptConn) SetWriteDeadline(time.Time) error { return nil }

// goHello returns the ClientHello that crypto/tls sends.
func goHello(t testing.TB, cfg *tls.Config) []byte {
	t.Helper()
	c := &scriptConn{in: strings.NewReader("")}
	if err := tls.Client(c, cfg).Handshake(); err == nil {
		t.Fatal("a handshake without a server succeeded")
	}
	return c.out.Bytes()
}

var errParsed = errors.New("the ClientHello was parsed")

// content is a Hello with strings.
type content struct {
	SNI       string
	ALPN      []string
	EarlyData bool
}

func contentOf(h Hello) content {
	s := content{SNI: string(h.SNI), EarlyData: h.EarlyData}
	for id := range h.ALPN() {
		s.ALPN = append(s.ALPN, string(id))
	}
	return s
}

// cryptoHello parses a ClientHello with crypto/tls. ok is false if crypto/tls
// refuses the ClientHello.
func cryptoHello(b []byte) (h content, ok bool) {
	tls.Server(&scriptConn{in: bytes.NewReader(b)}, &tls.Config{
		GetConfigForClient: func(i *tls.ClientHelloInfo) (*tls.Config, error) {
			h, ok = content{SNI: normalName(i.ServerName), ALPN: i.SupportedProtos,
				EarlyData: slices.Contains(i.Extensions, extEarlyData)}, true
			return nil, errParsed
		},
	}).HandshakeContext(context.Background())
	return h, ok
}

// parse passes b to a parser in steps of n bytes.
func parse(b []byte, n int) (content, error) {
	var p HelloParser
	for end := 0; ; {
		end = min(end+n, len(b))
		h, err := p.Parse(b[:end])
		if err != ErrNeedMore || end == len(b) {
			return contentOf(h), err
		}
	}
}

// records divides a handshake message into records of at most n bytes.
func records(msg []byte, n int) []byte {
	var out []byte
	for len(msg) > 0 {
		part := msg[:min(n, len(msg))]
		msg = msg[len(part):]
		out = append(out, 22, 3, 1)
		out = binary.BigEndian.AppendUint16(out, uint16(len(part)))
		out = append(out, part...)
	}
	return out
}

// checkHello compares the results of Parse and crypto/tls, and returns them. It
// also checks that Parse returns ErrNeedMore for each prefix.
func checkHello(t testing.TB, hello []byte) content {
	t.Helper()
	want, ok := cryptoHello(hello)
	if !ok {
		t.Fatal("crypto/tls refuses the ClientHello")
	}
	for _, step := range []int{len(hello), 1, 7, 1000} {
		got, err := parse(hello, step)
		if err != nil {
			t.Fatalf("Parse() in steps of %d bytes = %v, want nil", step, err)
		}
		if d := cmp.Diff(want, got); d != "" {
			t.Fatalf("Parse() in steps of %d bytes (-want +got):\n%s", step, d)
		}
	}
	for n := range len(hello) {
		if _, err := parse(hello[:n], len(hello)); err != ErrNeedMore {
			t.Fatalf("Parse() of the first %d of %d bytes = %v, want ErrNeedMore", n, len(hello), err)
		}
	}
	return want
}

func TestParse_GoClients(t *testing.T) {
	long := make([]string, 3000)
	for i := range long {
		long[i] = "protocol/" + string(rune('a'+i%26))
	}
	tests := []struct {
		name string
		cfg  *tls.Config
		want content
		size int // minimum
	}{
		{"default, with X25519MLKEM768", &tls.Config{
			ServerName: "srv1.server.dc1.wanfed", NextProtos: []string{"wanfed/gossip/1", "h2"},
		},
			content{SNI: "srv1.server.dc1.wanfed", ALPN: []string{"wanfed/gossip/1", "h2"}}, 1400},
		{"TLS 1.2", &tls.Config{ServerName: "a.example", MaxVersion: tls.VersionTLS12}, content{SNI: "a.example"}, 0},
		{"one curve", &tls.Config{ServerName: "b.example", CurvePreferences: []tls.CurveID{tls.X25519}},
			content{SNI: "b.example"}, 0},
		{"upper case", &tls.Config{ServerName: "SRV1.Server.DC1.Wanfed."}, content{SNI: "srv1.server.dc1.wanfed"}, 0},
		{"no SNI", &tls.Config{InsecureSkipVerify: true, NextProtos: []string{"h2"}}, content{ALPN: []string{"h2"}}, 0},
		{"IP address", &tls.Config{ServerName: "10.0.0.1"}, content{}, 0},
		{"over several records", &tls.Config{ServerName: "c.example", NextProtos: long},
			content{SNI: "c.example", ALPN: long}, 20000},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			hello := goHello(t, tt.cfg)
			if len(hello) < tt.size {
				t.Fatalf("ClientHello of crypto/tls = %d bytes, want at least %d", len(hello), tt.size)
			}
			if len(hello) > 5000 { // all prefixes would take long
				if got, err := parse(hello, 1000); err != nil || cmp.Diff(tt.want, got) != "" {
					t.Fatalf("Parse() = %+v, %v; want %+v", got, err, tt.want)
				}
				return
			}
			if d := cmp.Diff(tt.want, checkHello(t, hello)); d != "" {
				t.Errorf("Parse() (-want +got):\n%s", d)
			}
		})
	}
}

func TestParse_Resumption(t *testing.T) {
	addr := tlsUpstream(t, func(c *tls.Conn) { c.Write([]byte("x")) }) // the session ticket arrives with this byte
	for _, max := range []uint16{tls.VersionTLS12, tls.VersionTLS13} {
		client := &tls.Config{InsecureSkipVerify: true, ServerName: "resumed.example", MaxVersion: max,
			ClientSessionCache: tls.NewLRUClientSessionCache(1)}
		c, err := tls.Dial("tcp", addr, client)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := c.Read(make([]byte, 1)); err != nil {
			t.Fatal(err)
		}
		c.Close()
		fresh := goHello(t, &tls.Config{InsecureSkipVerify: true, ServerName: "resumed.example", MaxVersion: max})
		if again := goHello(t, client); len(again) <= len(fresh) {
			t.Errorf("ClientHello of a resumption = %d bytes, want more than %d", len(again), len(fresh))
		} else {
			checkHello(t, again)
		}
	}
}

func TestParse_OpenSSLClient(t *testing.T) {
	openssl, err := exec.LookPath("openssl")
	if err != nil {
		t.Skip("openssl is not installed")
	}
	for _, args := range [][]string{{}, {"-tls1_2"}, {"-alpn", "h2,wanfed/raft/1"}} {
		ln := listen(t)
		ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
		cmd := exec.CommandContext(ctx, openssl,
			append([]string{"s_client", "-connect", ln.Addr().String(), "-servername", "Ossl.Example"}, args...)...)
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		c, err := ln.Accept()
		if err != nil {
			t.Fatal(err)
		}
		p, err := New(Config{})
		if err != nil {
			t.Fatal(err)
		}
		l := NewListener("lan")
		l.SetTable(mustTable(t, Route{Match: "ossl.example", To: []string{"127.0.0.1:1"}}))
		e, client := newPortableEngine(p, nil), &clientConn{Conn: c, accepted: time.Now()}
		s := handler{p, l}.Accept(netip.AddrPort{}, client.accepted, func() bool {
			return e.limit.add(client)
		}).(*session)
		raw, _, err := e.readHello(s, client)
		c.Close()
		cmd.Wait() // fails: the listener does not answer
		cancel()
		if err != nil || s.opening.sni != "ossl.example" {
			t.Fatalf("openssl %v: readHello() = %v, SNI %q; want ossl.example", args, err, s.opening.sni)
		}
		checkHello(t, raw)
	}
}

func TestParse_RecordSizes(t *testing.T) {
	hello := goHello(t, &tls.Config{ServerName: "many.records.example", NextProtos: []string{"h2"}})
	for _, n := range []int{1, 2, 3, 4, 5, 6, 100, 517, 1024} {
		got, err := parse(records(hello[recordHeader:], n), 13)
		if err != nil || got.SNI != "many.records.example" {
			t.Errorf("records of %d bytes: SNI %q, %v; want many.records.example", n, got.SNI, err)
		}
		checkHello(t, records(hello[recordHeader:], max(n, 100)))
	}
}

func FuzzParseHello(f *testing.F) {
	hello := goHello(f, &tls.Config{ServerName: "fuzz.example", NextProtos: []string{"h2", "x"}})
	f.Add(hello, uint16(1))
	f.Add(records(hello[recordHeader:], 50), uint16(33))
	f.Add(goHello(f, &tls.Config{ServerName: "old.example", MaxVersion: tls.VersionTLS12}), uint16(9))
	f.Add(craft(ext(0x2a2a, 0), sniExt("Fuzz.Example")), uint16(100))
	f.Add([]byte("GET / HTTP/1.1\r\n\r\n"), uint16(3))
	for _, b := range recorded(f) {
		f.Add(b, uint16(len(b)))
		f.Add(records(body(b), 300), uint16(100))
	}
	f.Fuzz(func(t *testing.T, in []byte, step uint16) {
		if len(in) > MaxHelloSize {
			return
		}
		got, err := parse(in, len(in)+1)
		stepped, err2 := parse(in, int(step)+1)
		if (err == nil) != (err2 == nil) || err == nil && cmp.Diff(got, stepped) != "" {
			t.Fatalf("Parse() = %+v, %v; in steps of %d bytes = %+v, %v; want the same", got, err, step+1, stepped, err2)
		}
		want, ok := cryptoHello(in)
		switch {
		case ok && err == nil && cmp.Diff(want, got) != "":
			t.Fatalf("Parse() compared with crypto/tls (-want +got):\n%s", cmp.Diff(want, got))
		case ok && err != nil && onlyHandshakeRecords(in):
			t.Fatalf("Parse() = %v, want %+v as crypto/tls", err, want)
		}
	})
}

// onlyHandshakeRecords excludes input that crypto/tls tolerates and the parser
// refuses: alerts before the ClientHello, versions below SSL 3.0.
func onlyHandshakeRecords(b []byte) bool {
	for len(b) >= recordHeader {
		n := recordHeader + int(binary.BigEndian.Uint16(b[3:]))
		if b[0] != tlsrecord.Handshake || b[1] != 3 || n == recordHeader {
			return false
		}
		b = b[min(n, len(b)):]
	}
	return true
}

func BenchmarkParseHello(b *testing.B) {
	hello := goHello(b, &tls.Config{ServerName: "srv1.server.dc1.wanfed", NextProtos: []string{"h2"}})
	b.ReportAllocs()
	for b.Loop() {
		var p HelloParser
		if _, err := p.Parse(hello); err != nil {
			b.Fatal(err)
		}
	}
}

// A ClientHello in one record is parsed and routed without an allocation.
func TestParse_AllocatesNothing(t *testing.T) {
	table := mustTable(t, Route{Match: "srv1.server.dc1.wanfed", To: []string{"10.0.0.1:1"}},
		Route{Match: "*.server.dc2.wanfed", To: []string{"10.0.0.2:1"}, Protocols: []string{"x", "h2"}})
	for _, sni := range []string{"srv1.server.dc1.wanfed", "srv1.server.dc2.wanfed", "Srv1.server.dc2.wanfed"} {
		hello := goHello(t, &tls.Config{ServerName: sni, NextProtos: []string{"wanfed/gossip/1", "h2"}})
		allocs := testing.AllocsPerRun(100, func() {
			var p HelloParser
			h, err := p.Parse(hello)
			if _, refused := table.route(h); err != nil || refused != nil {
				t.Fatal(err, refused)
			}
		})
		if upper := sni[0] == 'S'; allocs != 0 && !upper || allocs > 1 {
			t.Errorf("allocations for %s = %v, want 0, or 1 for upper case", sni, allocs)
		}
	}
}
