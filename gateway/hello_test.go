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
	"os/exec"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

// scriptConn is a connection whose peer has said all it will say. What is written to it is kept.
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
		t.Fatal("handshake without a server worked")
	}
	return c.out.Bytes()
}

var errSeen = errors.New("hello seen")

// cryptoHello reads a ClientHello with crypto/tls. ok is false if crypto/tls does not accept it.
func cryptoHello(b []byte) (h Hello, ok bool) {
	tls.Server(&scriptConn{in: bytes.NewReader(b)}, &tls.Config{
		GetConfigForClient: func(i *tls.ClientHelloInfo) (*tls.Config, error) {
			h, ok = Hello{SNI: normalName(i.ServerName), ALPN: i.SupportedProtos}, true
			return nil, errSeen
		},
	}).HandshakeContext(context.Background())
	return h, ok
}

// parse feeds b to a parser in steps of n bytes, as a connection would.
func parse(b []byte, n int) (Hello, error) {
	var p HelloParser
	for end := 0; ; {
		end = min(end+n, len(b))
		h, err := p.Parse(b[:end])
		if err != ErrNeedMore || end == len(b) {
			return h, err
		}
	}
}

// records puts a handshake message into records of at most n bytes.
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

func checkHello(t testing.TB, hello []byte) Hello {
	t.Helper()
	want, ok := cryptoHello(hello)
	if !ok {
		t.Fatal("crypto/tls does not accept the hello")
	}
	for _, step := range []int{len(hello), 1, 7, 1000} {
		got, err := parse(hello, step)
		if err != nil {
			t.Fatalf("in steps of %d bytes: %v", step, err)
		}
		if d := cmp.Diff(want, got); d != "" {
			t.Fatalf("in steps of %d bytes:\n%s", step, d)
		}
	}
	for n := range len(hello) {
		if _, err := parse(hello[:n], len(hello)); err != ErrNeedMore {
			t.Fatalf("first %d of %d bytes: got %v, want ErrNeedMore", n, len(hello), err)
		}
	}
	return want
}

func TestParseGoHellos(t *testing.T) {
	long := make([]string, 3000)
	for i := range long {
		long[i] = "protocol/" + string(rune('a'+i%26))
	}
	tests := []struct {
		name string
		cfg  *tls.Config
		want Hello
		size int // at least
	}{
		{"default, with X25519MLKEM768", &tls.Config{ServerName: "srv1.server.dc1.wanfed", NextProtos: []string{"wanfed/gossip/1", "h2"}},
			Hello{"srv1.server.dc1.wanfed", []string{"wanfed/gossip/1", "h2"}}, 1400},
		{"TLS 1.2", &tls.Config{ServerName: "a.example", MaxVersion: tls.VersionTLS12}, Hello{SNI: "a.example"}, 0},
		{"one curve", &tls.Config{ServerName: "b.example", CurvePreferences: []tls.CurveID{tls.X25519}}, Hello{SNI: "b.example"}, 0},
		{"upper case", &tls.Config{ServerName: "SRV1.Server.DC1.Wanfed."}, Hello{SNI: "srv1.server.dc1.wanfed"}, 0},
		{"no SNI", &tls.Config{InsecureSkipVerify: true, NextProtos: []string{"h2"}}, Hello{ALPN: []string{"h2"}}, 0},
		{"IP address", &tls.Config{ServerName: "10.0.0.1"}, Hello{}, 0},
		{"over several records", &tls.Config{ServerName: "c.example", NextProtos: long}, Hello{SNI: "c.example", ALPN: long}, 20000},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			hello := goHello(t, tt.cfg)
			if len(hello) < tt.size {
				t.Fatalf("hello has %d bytes, the case wants %d", len(hello), tt.size)
			}
			if len(hello) > 5000 { // each prefix of it would take long
				if got, err := parse(hello, 1000); err != nil || cmp.Diff(tt.want, got) != "" {
					t.Fatalf("got %v", err)
				}
				return
			}
			if d := cmp.Diff(tt.want, checkHello(t, hello)); d != "" {
				t.Error(d)
			}
		})
	}
}

func TestParseResumption(t *testing.T) {
	addr := upstream(t, func(c *tls.Conn) { c.Write([]byte("x")) }) // carries the session ticket
	for _, max := range []uint16{tls.VersionTLS12, tls.VersionTLS13} {
		client := &tls.Config{InsecureSkipVerify: true, ServerName: "resumed.example", MaxVersion: max, ClientSessionCache: tls.NewLRUClientSessionCache(1)}
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
			t.Errorf("hello of %d bytes carries no session; without one it has %d", len(again), len(fresh))
		} else {
			checkHello(t, again)
		}
	}
}

func TestParseOpenSSLHello(t *testing.T) {
	openssl, err := exec.LookPath("openssl")
	if err != nil {
		t.Skip("openssl is not installed")
	}
	for _, args := range [][]string{{}, {"-tls1_2"}, {"-alpn", "h2,wanfed/raft/1"}} {
		ln := listen(t)
		ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
		cmd := exec.CommandContext(ctx, openssl, append([]string{"s_client", "-connect", ln.Addr().String(), "-servername", "Ossl.Example"}, args...)...)
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
		cn := &conn{client: c, began: time.Now()}
		p.conns.add(cn)
		got, raw, err := p.readHello(cn, make([]byte, 0, helloBuffer))
		c.Close()
		cmd.Wait() // fails: nobody answered
		cancel()
		if err != nil || got.SNI != "ossl.example" {
			t.Fatalf("openssl %v: got %q, %v", args, got.SNI, err)
		}
		checkHello(t, raw)
	}
}

func TestParseRecordSizes(t *testing.T) {
	hello := goHello(t, &tls.Config{ServerName: "many.records.example", NextProtos: []string{"h2"}})
	for _, n := range []int{1, 2, 3, 4, 5, 6, 100, 517, 1024} {
		got, err := parse(records(hello[recordHeader:], n), 13)
		if err != nil || got.SNI != "many.records.example" {
			t.Errorf("records of %d bytes: got %q, %v", n, got.SNI, err)
		}
		checkHello(t, records(hello[recordHeader:], max(n, 100)))
	}
}

// craft makes a hello with these extensions, each already with its type and length.
func craft(exts ...[]byte) []byte {
	body := append([]byte{3, 3}, make([]byte, 32)...)
	body = append(body, 0)                         // session id
	body = append(body, 0, 4, 0x1a, 0x1a, 0x13, 1) // suites, the first is GREASE
	body = append(body, 1, 0)                      // compression
	if exts != nil {
		all := bytes.Join(exts, nil)
		body = binary.BigEndian.AppendUint16(body, uint16(len(all)))
		body = append(body, all...)
	}
	return records(append([]byte{1, byte(len(body) >> 16), byte(len(body) >> 8), byte(len(body))}, body...), maxRecord)
}

func ext(kind uint16, data ...byte) []byte {
	b := binary.BigEndian.AppendUint16(nil, kind)
	return append(binary.BigEndian.AppendUint16(b, uint16(len(data))), data...)
}

func sniExt(name string) []byte {
	n := byte(len(name))
	return ext(extServerName, append([]byte{0, n + 3, 0, 0, n}, name...)...)
}

func TestParseCrafted(t *testing.T) {
	grease := ext(0x2a2a, 0)
	unknown := ext(0xfafa, make([]byte, 300)...)
	tests := []struct {
		name  string
		hello []byte
		sni   string
		err   string // part of it; empty: none
	}{
		{"no extensions at all", craft(), "", ""},
		{"empty extensions", craft([]byte{}), "", ""},
		{"GREASE and unknown extensions", craft(grease, sniExt("a.b"), unknown), "a.b", ""},
		{"unknown name type before the name", craft(ext(0, 0, 10, 7, 0, 1, 'x', 0, 0, 3, 'a', '.', 'b')), "a.b", ""},
		{"two names", craft(ext(0, 0, 8, 0, 0, 1, 'a', 0, 0, 1, 'b')), "", "extension 0"},
		{"empty name", craft(ext(0, 0, 3, 0, 0, 0)), "", "extension 0"},
		{"empty list", craft(ext(0, 0, 0)), "", "extension 0"},
		{"rest after list", craft(ext(0, 0, 4, 0, 0, 1, 'a', 0)), "", "extension 0"},
		{"SNI twice", craft(sniExt("a.b"), sniExt("a.c")), "", "extension 0"},
		{"ALPN twice", craft(ext(16, 0, 2, 1, 'a'), ext(16, 0, 2, 1, 'a')), "", "extension 16"},
		{"empty protocol id", craft(ext(16, 0, 1, 0)), "", "extension 16"},
		{"extension longer than the hello", craft([]byte{0, 9, 0, 9, 1}), "", "extension 9"},
		{"body cut", records([]byte{1, 0, 0, 3, 3, 3, 0}, 100), "", "ends too early"},
		{"other handshake message", records([]byte{2, 0, 0, 1, 0}, 100), "", "message type 2"},
		{"empty record", []byte{22, 3, 1, 0, 0}, "", "record is empty"},
		{"record too long", []byte{22, 3, 1, 0x40, 1}, "", "16385 bytes"},
		{"alert in between", append(records([]byte{1, 0, 1, 0}, 9), 21), "", "another kind"},
		{"application data", []byte("\x17\x03\x03\x00\x01"), "", "application data"},
		{"alert", []byte("\x15\x03\x03\x00\x02"), "", "TLS alert"},
		{"HTTP", []byte("GET / HTTP/1.1\r\n"), "", "plain HTTP request"},
		{"HTTP/2", []byte("PRI * HTTP/2.0\r\n\r\nSM"), "", "HTTP/2 without TLS"},
		{"PROXY v1", []byte("PROXY TCP4 1.2.3.4"), "", "PROXY protocol"},
		{"PROXY v2", []byte("\r\n\r\n\x00\r\nQUIT\n\x21"), "", "PROXY protocol"},
		{"SSH", []byte("SSH-2.0-OpenSSH_9"), "", "an SSH client"},
		{"SSL 2.0", []byte{0x80, 0x2e, 1, 0, 2}, "", "SSL 2.0"},
		{"text", []byte("hello there"), "", `text: "hello there"`},
		{"one letter", []byte("G"), "", `text: "G"`},
		{"binary", []byte{0, 1, 2, 0xff}, "", "binary data: 00 01 02 ff"},
	}
	for _, tt := range tests {
		for _, step := range []int{1 << 20, 16} {
			got, err := parse(tt.hello, step)
			switch {
			case tt.err == "" && err != nil:
				t.Errorf("%s: %v", tt.name, err)
			case tt.err != "" && (err == nil || !strings.Contains(err.Error(), tt.err)):
				t.Errorf("%s: got error %v, want one with %q", tt.name, err, tt.err)
			case tt.err != "" && !isNotTLS(err):
				t.Errorf("%s: got %T, want *NotTLSError", tt.name, err)
			case got.SNI != tt.sni:
				t.Errorf("%s: got SNI %q, want %q", tt.name, got.SNI, tt.sni)
			}
		}
	}
}

func isNotTLS(err error) bool {
	_, ok := errors.AsType[*NotTLSError](err)
	return ok
}

func TestParseTooLarge(t *testing.T) {
	if _, err := parse([]byte{22, 3, 1, 0x40, 0, 1, 1, 0, 0}, 100); err != ErrHelloTooLarge {
		t.Errorf("announced length: got %v", err)
	}
	small := records(append([]byte{1, 0, 0x80, 0}, make([]byte, 0x8000)...), 1) // 32 KiB in records of one byte
	if _, err := parse(small, 4096); err != ErrHelloTooLarge {
		t.Errorf("record headers: got %v", err)
	}
}

func FuzzParseHello(f *testing.F) {
	hello := goHello(f, &tls.Config{ServerName: "fuzz.example", NextProtos: []string{"h2", "x"}})
	f.Add(hello, uint16(1))
	f.Add(records(hello[recordHeader:], 50), uint16(33))
	f.Add(goHello(f, &tls.Config{ServerName: "old.example", MaxVersion: tls.VersionTLS12}), uint16(9))
	f.Add(craft(ext(0x2a2a, 0), sniExt("Fuzz.Example")), uint16(100))
	f.Add([]byte("GET / HTTP/1.1\r\n\r\n"), uint16(3))
	f.Fuzz(func(t *testing.T, in []byte, step uint16) {
		if len(in) > MaxHelloSize {
			return
		}
		got, err := parse(in, len(in)+1)
		stepped, err2 := parse(in, int(step)+1)
		if (err == nil) != (err2 == nil) || err == nil && cmp.Diff(got, stepped) != "" {
			t.Fatalf("whole: %+v, %v; in steps of %d: %+v, %v", got, err, step+1, stepped, err2)
		}
		want, ok := cryptoHello(in)
		switch {
		case ok && err == nil && cmp.Diff(want, got) != "":
			t.Fatal(cmp.Diff(want, got))
		case ok && err != nil && onlyHandshakeRecords(in):
			t.Fatalf("crypto/tls accepts it with %+v: %v", want, err)
		}
	})
}

// onlyHandshakeRecords excludes what crypto/tls tolerates and this parser need not: alerts before the hello, versions below
// SSL 3.0.
func onlyHandshakeRecords(b []byte) bool {
	for len(b) >= recordHeader {
		n := recordHeader + int(binary.BigEndian.Uint16(b[3:]))
		if b[0] != recordHandshake || b[1] != 3 || n == recordHeader {
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
