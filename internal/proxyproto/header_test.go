// SPDX-License-Identifier: MPL-2.0

package proxyproto

import (
	"bytes"
	"errors"
	"io"
	"net/netip"
	"strings"
	"testing"
	"testing/iotest"
)

// header returns a header with these bytes after the signature.
func header(versionCommand, familyTransport byte, rest ...byte) []byte {
	return append([]byte(Signature),
		append([]byte{versionCommand, familyTransport, byte(len(rest) >> 8), byte(len(rest))}, rest...)...)
}

func TestParse(t *testing.T) {
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
		{"IPv4", header(0x21, 0x11, v4...), "192.0.2.1:12345", ""},
		{"IPv4 with TLVs", header(0x21, 0x11, append(bytes.Clone(v4), tlv...)...), "192.0.2.1:12345", ""},
		{"IPv6", header(0x21, 0x21, v6...), "[2001:db8::1]:1", ""},
		{"IPv4 in IPv6", header(0x21, 0x21, v4in6...), "192.0.2.7:1", ""},
		{"Unix socket", header(0x21, 0x31, make([]byte, 216)...), "", ""},
		{"unspecified", header(0x21, 0), "", ""},
		{"unspecified, with TLVs", header(0x21, 0, tlv...), "", ""},
		{"LOCAL", header(0x20, 0), "", ""},
		{"LOCAL with addresses", header(0x20, 0x11, v4...), "", ""},
		{"LOCAL of an unknown family", header(0x20, 0xff), "", ""},
		{"version 1", header(0x11, 0x11, v4...), "", "version 1"},
		{"other command", header(0x22, 0x11, v4...), "", "command 2"},
		{"UDP", header(0x21, 0x12, v4...), "", "family 1 with transport 2"},
		{"other family", header(0x21, 0x41, v4...), "", "family 4"},
		{"short IPv4", header(0x21, 0x11, v4[:11]...), "", "too few"},
		{"short IPv6", header(0x21, 0x21, v4...), "", "too few"},
		{"largest size", header(0x21, 0x11, append(bytes.Clone(v4), make([]byte, MaxSize-fixed-12)...)...),
			"192.0.2.1:12345", ""},
		{"too long", header(0x21, 0x11, make([]byte, MaxSize-fixed+1)...), "", "at most 4096"},
		{"text version", []byte("PROXY TCP4 192.0.2.1 192.0.2.2 1 2\r\n"), "", ErrNoHeader.Error()},
		{"ClientHello", []byte("\x16\x03\x01\x02\x00\x01"), "", ErrNoHeader.Error()},
		{"other bytes", []byte("\r\n\r\nx"), "", "does not begin with"},
	} {
		source, size, err := Parse(append(bytes.Clone(tt.in), "rest"...))
		switch {
		case tt.err == "" && (err != nil || size != len(tt.in)), tt.err != "" &&
			(err == nil || !strings.Contains(err.Error(), tt.err)):
			t.Errorf("%s: Parse() = size %d, %v; want %d, %q", tt.name, size, err, len(tt.in), tt.err)
		case tt.source == "" && source.IsValid() || tt.source != "" && source.String() != tt.source:
			t.Errorf("%s: Parse() = source %v, want %q", tt.name, source, tt.source)
		}
		for n := range len(tt.in) {
			if _, _, err := Parse(tt.in[:n]); err != ErrNeedMore && tt.err == "" {
				t.Errorf("%s: Parse() of the first %d bytes = %v, want %v", tt.name, n, err, ErrNeedMore)
			}
		}
	}
}

func TestAppend(t *testing.T) {
	for _, tt := range [][3]string{
		{"192.0.2.1:7", "198.51.100.1:443", "192.0.2.1:7"},
		{"[2001:db8::1]:7", "[2001:db8::2]:443", "[2001:db8::1]:7"},
		{"[::ffff:192.0.2.1]:7", "198.51.100.1:443", "192.0.2.1:7"},
		{"192.0.2.1:7", "[2001:db8::2]:443", "192.0.2.1:7"},
		{"[fe80::1%eth0]:7", "[fe80::2%eth0]:443", "[fe80::1]:7"},
	} {
		b := Append([]byte("x"), netip.MustParseAddrPort(tt[0]), netip.MustParseAddrPort(tt[1]))
		if source, size, err := Parse(b[1:]); err != nil || size != len(b)-1 || source.String() != tt[2] {
			t.Errorf("Parse(Append(%v)) = %v, %d, %v, want %v, %d, nil", tt[:2], source, size, err, tt[2], len(b)-1)
		}
	}
	b := Append(nil, netip.AddrPort{}, netip.AddrPort{})
	if source, size, err := Parse(b); err != nil || size != len(b) || source.IsValid() {
		t.Errorf("Parse(Append()) without addresses = %v, %d, %v, want no source, %d, nil", source, size, err, len(b))
	}
}

func FuzzParse(f *testing.F) {
	f.Add(Append(nil, netip.MustParseAddrPort("192.0.2.1:7"), netip.MustParseAddrPort("198.51.100.1:443")))
	f.Add(Append(nil, netip.MustParseAddrPort("[2001:db8::1]:7"), netip.MustParseAddrPort("[2001:db8::2]:443")))
	f.Add(header(0x21, 0x31, make([]byte, 220)...))
	f.Add(header(0x20, 0))
	f.Add([]byte("PROXY TCP4 192.0.2.1 192.0.2.2 1 2\r\n"))
	f.Fuzz(func(t *testing.T, in []byte) {
		source, size, err := Parse(in)
		r := bytes.NewReader(in)
		if from, fromErr := ReadFrom(r); err == nil && (fromErr != nil || from != source || r.Len() != len(in)-size) ||
			err != nil && fromErr == nil {
			t.Fatalf("ReadFrom() = %v, %v with %d bytes left; want %v, %v with %d", from, fromErr, r.Len(), source, err,
				len(in)-size)
		}
		if err != nil {
			if source.IsValid() || err == ErrNeedMore && len(in) >= MaxSize {
				t.Fatalf("Parse() of %d bytes = %v, %d, %v, want no source, and no ErrNeedMore above %d bytes",
					len(in), source, size, err, MaxSize)
			}
			return
		}
		if size < fixed || size > min(len(in), MaxSize) {
			t.Fatalf("Parse() = size %d, want %d to %d", size, fixed, min(len(in), MaxSize))
		}
		for n := range size {
			if _, _, err := Parse(in[:n]); err != ErrNeedMore {
				t.Fatalf("Parse() of the first %d bytes = %v, want %v", n, err, ErrNeedMore)
			}
		}
		if source.IsValid() { // Append must be able to write the address
			again, _, err := Parse(Append(nil, source, source))
			if err != nil || again.Port() != source.Port() || again.Addr() != source.Addr() {
				t.Fatalf("Parse(Append(%v)) = %v, %v, want the same address", source, again, err)
			}
		}
	})
}

// TestReadFrom reads headers in pieces of different sizes. ReadFrom must not
// read the byte after a header.
func TestReadFrom(t *testing.T) {
	long := header(0x21, 0x11, append([]byte{192, 0, 2, 1, 198, 51, 100, 1, 0, 7, 0, 9},
		make([]byte, MaxSize-fixed-12)...)...)
	for _, in := range [][]byte{
		Append(nil, netip.MustParseAddrPort("192.0.2.1:7"), netip.MustParseAddrPort("198.51.100.1:443")),
		Append(nil, netip.AddrPort{}, netip.AddrPort{}), header(0x21, 0x31, make([]byte, 216)...), long,
	} {
		want, _, err := Parse(in)
		if err != nil {
			t.Fatal(err)
		}
		for _, slow := range []func(io.Reader) io.Reader{
			iotest.OneByteReader, iotest.HalfReader, func(r io.Reader) io.Reader { return r },
		} {
			r := bytes.NewReader(append(bytes.Clone(in), 'x'))
			if got, err := ReadFrom(slow(r)); err != nil || got != want {
				t.Errorf("ReadFrom() of %d bytes = %v, %v; want %v", len(in), got, err, want)
			}
			if r.Len() != 1 {
				t.Errorf("unread bytes after ReadFrom() of %d bytes = %d, want 1", len(in), r.Len())
			}
		}
		for n := range len(in) {
			if _, err := ReadFrom(bytes.NewReader(in[:n])); err != io.EOF {
				t.Fatalf("ReadFrom() of the first %d of %d bytes = %v, want %v", n, len(in), err, io.EOF)
			}
		}
	}
	for _, bad := range [][]byte{[]byte("G"), []byte("\r\n\r\n\x00\r\nQUIX"),
		header(0x21, 0x11, make([]byte, MaxSize)...)} {
		r := io.MultiReader(bytes.NewReader(bad), iotest.ErrReader(errors.New("read again")))
		if _, err := ReadFrom(r); err == nil || strings.Contains(err.Error(), "read again") {
			t.Errorf("ReadFrom(%.20q) = %v, want an error without another read", bad, err)
		}
	}
}
