// SPDX-License-Identifier: MPL-2.0

package gateway

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"iter"
	"slices"

	"golang.org/x/crypto/cryptobyte"

	"github.com/wanfed/wanfed/gateway/internal/reactor"
	"github.com/wanfed/wanfed/gateway/internal/tlsrecord"
)

// MaxHelloSize bounds a ClientHello with its record headers, in bytes.
const MaxHelloSize = 64 << 10

// Sizes in bytes and numbers of RFC 8446, RFC 6066 and RFC 7301.
const (
	recordHeader  = tlsrecord.HeaderSize
	randomSize    = 32
	messageHeader = 4  // type and length of a handshake message
	clientHello   = 1  // handshake message type
	extServerName = 0  // extension types
	extALPN       = 16 // application_layer_protocol_negotiation
	extEarlyData  = 42
	nameTypeHost  = 0 // host_name, the only name type in use
)

// Hello is the content of a ClientHello. Its slices share memory with the bytes
// from which it was parsed.
type Hello struct {
	// SNI is the name of the server in lower case, without a final dot. It is
	// empty if the client does not send a name.
	SNI []byte
	// EarlyData is true if the client sends data with its ClientHello (0-RTT).
	// Only one server may receive the data: two servers could act on it.
	EarlyData bool

	alpn   cryptobyte.String // the list of protocol ids, well formed
	random []byte            // of the client, randomSize bytes
}

// ALPN returns the protocol ids that the client offers, in its order of
// preference.
func (h Hello) ALPN() iter.Seq[[]byte] {
	return func(yield func([]byte) bool) {
		var id cryptobyte.String
		for list := h.alpn; list.ReadUint8LengthPrefixed(&id); {
			if !yield(id) {
				return
			}
		}
	}
}

// Errors that HelloParser.Parse returns in addition to *NotTLSError.
var (
	// ErrNeedMore means that the received bytes may be the start of a
	// ClientHello.
	ErrNeedMore = reactor.ErrNeedMore
	// ErrHelloTooLarge means that the ClientHello exceeds MaxHelloSize.
	ErrHelloTooLarge = fmt.Errorf("ClientHello is larger than %d KiB", MaxHelloSize>>10)
)

// NotTLSError means that a connection does not begin with a ClientHello.
type NotTLSError struct {
	Detected string // describes the bytes, such as "a plain HTTP request"
}

func (e *NotTLSError) Error() string { return "not a TLS ClientHello but " + e.Detected }

// HelloParser parses a ClientHello while its bytes arrive, in any number of TLS
// records. The zero value is ready for one connection.
type HelloParser struct {
	next int    // offset of the next unread record in the input
	msg  []byte // handshake bytes of the records before next; nil: next is the first record
	end  int    // offset of the first byte after the ClientHello, when it is complete
}

// Parse parses all received bytes, including the bytes of earlier calls. It
// returns ErrNeedMore until the ClientHello is complete. All calls together
// take linear time. A ClientHello in one record, with its name in lower case,
// allocates nothing. Parse does not change the bytes, but the Hello may share
// memory with them.
func (p *HelloParser) Parse(in []byte) (Hello, error) {
	for {
		rec := in[p.next:]
		if err := p.checkHeader(rec); err != nil {
			return Hello{}, err
		}
		if len(rec) < recordHeader {
			return Hello{}, needMore(in)
		}
		payload, n := rec[recordHeader:], int(binary.BigEndian.Uint16(rec[3:]))
		whole := len(payload) >= n
		if whole {
			payload = payload[:n]
		}
		msg := payload
		switch {
		case p.msg != nil && whole:
			msg = append(p.msg, payload...)
		case p.msg != nil:
			msg = p.msg
		}
		size, err := messageSize(msg)
		if err != nil {
			return Hello{}, err
		}
		if !whole {
			return Hello{}, needMore(in)
		}
		if len(msg) >= size {
			p.end = p.next + recordHeader + len(payload)
			return parseBody(msg[messageHeader:size])
		}
		if p.msg = msg; p.next == 0 {
			p.msg = bytes.Clone(msg) // in belongs to the caller
		}
		p.next += recordHeader + len(payload)
	}
}

// needMore returns the error for an incomplete ClientHello.
func needMore(in []byte) error {
	if len(in) >= MaxHelloSize {
		return ErrHelloTooLarge
	}
	return ErrNeedMore
}

// checkHeader refuses an invalid record header as soon as enough bytes have
// arrived.
func (p *HelloParser) checkHeader(rec []byte) error {
	switch {
	case len(rec) >= 1 && rec[0] != tlsrecord.Handshake, len(rec) >= 2 && rec[1] != 3:
		if p.next == 0 {
			return &NotTLSError{tlsrecord.Detect(rec)}
		}
		return malformed("a record of another type is between its records")
	case len(rec) < recordHeader:
		return nil
	}
	switch n := int(binary.BigEndian.Uint16(rec[3:])); {
	case n == 0:
		return malformed("a record is empty")
	case n > tlsrecord.MaxPayload:
		return malformed(fmt.Sprintf("a record has %d bytes; at most %d are allowed", n, tlsrecord.MaxPayload))
	}
	return nil
}

// messageSize returns the size of the handshake message at the start of msg,
// with its header. While the header is incomplete, it returns a size larger
// than len(msg).
func messageSize(msg []byte) (int, error) {
	if len(msg) >= 1 && msg[0] != clientHello {
		return 0, malformed(fmt.Sprintf("the handshake begins with message type %d", msg[0]))
	}
	if len(msg) < messageHeader {
		return messageHeader, nil
	}
	size := messageHeader + (int(msg[1])<<16 | int(msg[2])<<8 | int(msg[3]))
	if size > MaxHelloSize-recordHeader {
		return 0, ErrHelloTooLarge
	}
	return size, nil
}

func malformed(why string) error { return &NotTLSError{"a malformed one: " + why} }

// parseBody parses the ClientHello of RFC 8446, section 4.1.2.
func parseBody(body []byte) (Hello, error) {
	var h Hello
	hasName := false
	s := cryptobyte.String(body)
	var sessionID, suites, compression, exts cryptobyte.String
	if !s.Skip(2) || !s.ReadBytes(&h.random, randomSize) || // legacy_version, random
		!s.ReadUint8LengthPrefixed(&sessionID) || !s.ReadUint16LengthPrefixed(&suites) || len(suites)%2 != 0 ||
		!s.ReadUint8LengthPrefixed(&compression) {
		return Hello{}, malformed("it ends too early")
	}
	if s.Empty() {
		return h, nil // TLS 1.2 and earlier allow a ClientHello without extensions
	}
	if !s.ReadUint16LengthPrefixed(&exts) || !s.Empty() {
		return Hello{}, malformed("the length of its extensions is wrong")
	}
	for !exts.Empty() {
		var kind uint16
		var ext cryptobyte.String
		ok := exts.ReadUint16(&kind) && exts.ReadUint16LengthPrefixed(&ext)
		switch kind {
		case extServerName:
			ok = ok && !hasName && readServerName(ext, &h)
			hasName = true
		case extALPN:
			ok = ok && h.alpn == nil && readALPN(ext, &h)
		case extEarlyData:
			h.EarlyData = true
		}
		if !ok {
			return Hello{}, malformed(fmt.Sprintf("extension %d is not well formed", kind))
		}
	}
	return h, nil
}

// readServerName parses the extension of RFC 6066, section 3.
func readServerName(ext cryptobyte.String, h *Hello) bool {
	var list cryptobyte.String
	if !ext.ReadUint16LengthPrefixed(&list) || !ext.Empty() || list.Empty() {
		return false
	}
	for !list.Empty() {
		var kind uint8
		var name cryptobyte.String
		if !list.ReadUint8(&kind) || !list.ReadUint16LengthPrefixed(&name) || name.Empty() {
			return false
		}
		if kind == nameTypeHost {
			if h.SNI != nil {
				return false
			}
			h.SNI = normalBytes(name)
		}
	}
	return true
}

// readALPN parses the extension of RFC 7301, section 3.1.
func readALPN(ext cryptobyte.String, h *Hello) bool {
	var list cryptobyte.String
	if !ext.ReadUint16LengthPrefixed(&list) || !ext.Empty() || list.Empty() {
		return false
	}
	h.alpn = list
	for !list.Empty() {
		var id cryptobyte.String
		if !list.ReadUint8LengthPrefixed(&id) || id.Empty() {
			return false
		}
	}
	return true
}

// normalBytes returns a DNS name in the form in which names are compared: ASCII
// lower case, no final dot. Bytes above ASCII stay (RFC 4343, section 3). It
// does not change b, and allocates only for upper case.
func normalBytes(b []byte) []byte {
	b = bytes.TrimSuffix(b, []byte{'.'})
	upper := func(c byte) bool { return 'A' <= c && c <= 'Z' }
	if !slices.ContainsFunc(b, upper) {
		return b
	}
	b = bytes.Clone(b)
	for i, c := range b {
		if upper(c) {
			b[i] += 'a' - 'A'
		}
	}
	return b
}

// normalName returns normalBytes of a string.
func normalName(s string) string { return string(normalBytes([]byte(s))) }
