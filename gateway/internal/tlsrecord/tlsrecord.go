// SPDX-License-Identifier: MPL-2.0

package tlsrecord

import (
	"encoding/binary"
	"errors"
	"fmt"
	"strings"
)

// Sizes and content types of RFC 8446, section 5.1.
const (
	HeaderSize = 5
	MaxPayload = 16 << 10 // bytes of a record that is not encrypted
	Alert      = 21
	Handshake  = 22

	// MaxSize is the size of the largest record, encrypted or not, with its
	// header.
	MaxSize = HeaderSize + MaxPayload + protection

	firstType  = 20  // change_cipher_spec
	lastType   = 24  // heartbeat (RFC 6520)
	protection = 256 // bytes that encryption may add
)

// Size returns the size of the TLS record at the start of b, with its header,
// at most MaxSize. It returns 0 while the header is incomplete, and an error if
// b is not the start of a TLS record.
func Size(b []byte) (int, error) {
	if len(b) >= 1 && (b[0] < firstType || b[0] > lastType) || len(b) >= 2 && b[1] != 3 {
		return 0, errors.New("its response is not TLS but " + Detect(b))
	}
	if len(b) < HeaderSize {
		return 0, nil
	}
	n := int(binary.BigEndian.Uint16(b[3:]))
	if n == 0 || n > MaxPayload+protection {
		return 0, fmt.Errorf("its first TLS record has an invalid length of %d bytes", n)
	}
	return HeaderSize + n, nil
}

const (
	httpRequest = "a plain HTTP request"
	proxyHeader = "a PROXY protocol header: name its sender in proxy_protocol (version 2 only), or disable it there"
)

// prefixes are the first bytes of other protocols, and of TLS records that
// cannot be the first of a connection.
var prefixes = []struct{ prefix, name string }{
	{"GET ", httpRequest}, {"HEAD ", httpRequest}, {"POST ", httpRequest}, {"PUT ", httpRequest},
	{"DELETE ", httpRequest}, {"OPTIONS ", httpRequest}, {"PATCH ", httpRequest}, {"TRACE ", httpRequest},
	{"CONNECT ", "an HTTP proxy request (CONNECT); a gateway is not an HTTP proxy"},
	{"PRI * HTTP/2.0", "HTTP/2 without TLS"},
	{"PROXY ", proxyHeader}, {"\r\n\r\n\x00\r\nQUIT\n", proxyHeader},
	{"SSH-", "an SSH client"},
	{"EHLO ", "an SMTP client"}, {"HELO ", "an SMTP client"},
	{"\x15\x03", "a TLS alert"},
	{"\x16\x03", "a TLS hello"},
	{"\x17\x03", "TLS application data: the connection did not begin with a handshake"},
}

// Detect describes the first bytes of a connection. One byte is enough.
func Detect(b []byte) string {
	s := string(b[:min(len(b), 16)])
	for _, p := range prefixes {
		if strings.HasPrefix(s, p.prefix) {
			return p.name
		}
	}
	binary := func(r rune) bool { return r < ' ' && r != '\r' && r != '\n' && r != '\t' || r > '~' }
	switch {
	case len(b) > 2 && b[0]&0x80 != 0 && b[2] == 1:
		return "an SSL 2.0 hello; the client is too old"
	case strings.IndexFunc(s, binary) < 0:
		return fmt.Sprintf("text: %q", s)
	}
	return fmt.Sprintf("binary data: % x", s)
}
