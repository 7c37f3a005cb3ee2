// SPDX-License-Identifier: MPL-2.0

package gateway

import (
	"bytes"
	"encoding/binary"
	"errors"
	"strings"
	"testing"

	"github.com/wanfed/wanfed/gateway/internal/tlsrecord"
)

// craft returns a ClientHello with the extensions exts. Each extension includes
// its type and length.
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
	return records(append([]byte{1, byte(len(body) >> 16), byte(len(body) >> 8), byte(len(body))}, body...),
		tlsrecord.MaxPayload)
}

func ext(kind uint16, data ...byte) []byte {
	b := binary.BigEndian.AppendUint16(nil, kind)
	return append(binary.BigEndian.AppendUint16(b, uint16(len(data))), data...)
}

func sniExt(name string) []byte {
	n := byte(len(name))
	return ext(extServerName, append([]byte{0, n + 3, 0, 0, n}, name...)...)
}

func TestParse_Crafted(t *testing.T) {
	grease := ext(0x2a2a, 0)
	unknown := ext(0xfafa, make([]byte, 300)...)
	tests := []struct {
		name  string
		hello []byte
		sni   string
		err   string // part of the error; empty: none
	}{
		{"no extensions at all", craft(), "", ""},
		{"empty extensions", craft([]byte{}), "", ""},
		{"GREASE and unknown extensions", craft(grease, sniExt("a.b"), unknown), "a.b", ""},
		{"unknown name type before the name", craft(ext(0, 0, 10, 7, 0, 1, 'x', 0, 0, 3, 'a', '.', 'b')), "a.b", ""},
		{"two names", craft(ext(0, 0, 8, 0, 0, 1, 'a', 0, 0, 1, 'b')), "", "extension 0"},
		{"empty name", craft(ext(0, 0, 3, 0, 0, 0)), "", "extension 0"},
		{"empty list", craft(ext(0, 0, 0)), "", "extension 0"},
		{"bytes after the list of names", craft(ext(0, 0, 4, 0, 0, 1, 'a', 0)), "", "extension 0"},
		{"SNI twice", craft(sniExt("a.b"), sniExt("a.c")), "", "extension 0"},
		{"ALPN twice", craft(ext(16, 0, 2, 1, 'a'), ext(16, 0, 2, 1, 'a')), "", "extension 16"},
		{"empty protocol id", craft(ext(16, 0, 1, 0)), "", "extension 16"},
		{"extension longer than the hello", craft([]byte{0, 9, 0, 9, 1}), "", "extension 9"},
		{"truncated body", records([]byte{1, 0, 0, 3, 3, 3, 0}, 100), "", "ends too early"},
		{"other handshake message", records([]byte{2, 0, 0, 1, 0}, 100), "", "message type 2"},
		{"empty record", []byte{22, 3, 1, 0, 0}, "", "record is empty"},
		{"record too long", []byte{22, 3, 1, 0x40, 1}, "", "16385 bytes"},
		{"alert in between", append(records([]byte{1, 0, 1, 0}, 9), 21), "", "another type"},
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
				t.Errorf("%s: parse() = %v, want nil", tt.name, err)
			case tt.err != "" && (err == nil || !strings.Contains(err.Error(), tt.err)):
				t.Errorf("%s: parse() = %v, want an error with %q", tt.name, err, tt.err)
			case tt.err != "" && !isNotTLS(err):
				t.Errorf("%s: parse() = error of type %T, want *NotTLSError", tt.name, err)
			case got.SNI != tt.sni:
				t.Errorf("%s: parse() = SNI %q, want %q", tt.name, got.SNI, tt.sni)
			}
		}
	}
}

func isNotTLS(err error) bool {
	_, ok := errors.AsType[*NotTLSError](err)
	return ok
}

func TestParse_TooLarge(t *testing.T) {
	if _, err := parse([]byte{22, 3, 1, 0x40, 0, 1, 1, 0, 0}, 100); err != ErrHelloTooLarge {
		t.Errorf("parse() of a large announced length = %v, want %v", err, ErrHelloTooLarge)
	}
	small := records(append([]byte{1, 0, 0x80, 0}, make([]byte, 0x8000)...), 1) // 32 KiB in records of one byte
	if _, err := parse(small, 4096); err != ErrHelloTooLarge {
		t.Errorf("parse() of records of one byte = %v, want %v", err, ErrHelloTooLarge)
	}
}
