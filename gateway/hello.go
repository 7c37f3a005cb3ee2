// SPDX-License-Identifier: MPL-2.0

package gateway

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"iter"

	"golang.org/x/crypto/cryptobyte"

	"github.com/wanfed/wanfed/gateway/internal/reactor"
	"github.com/wanfed/wanfed/gateway/internal/tlsrecord"
)

// MaxHelloSize bounds a ClientHello with its record headers, in bytes.
const MaxHelloSize = 64 << 10

// Sizes and numbers of RFC 8446, section 4, RFC 6066, section 3, and RFC 7301,
// section 3.1.
const (
	recordHeader  = tlsrecord.HeaderSize
	messageHeader = 4
	clientHello   = 1
	extServerName = 0
	extALPN       = 16
	extEarlyData  = 42
	nameTypeHost  = 0
)

// Hello is the unencrypted content of a ClientHello. Its slices share the
// memory from which it was parsed.
type Hello struct {
	// SNI is the name of the server in lower case, without a final dot. It is
	// empty if the client does not send a name.
	SNI []byte
	// EarlyData is set if the client sends data with its ClientHello (0-RTT). A
	// second server that receives the data could also act on the data.
	EarlyData bool

	alpn cryptobyte.String // the list of RFC 7301, section 3.1, well formed
}

// ALPN returns the protocol ids that the client offers, best first.
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
	// Detected describes the bytes, such as "a plain HTTP request".
	Detected string
}

func (e *NotTLSError) Error() string { return "not a TLS ClientHello but " + e.Detected }

// HelloParser parses a ClientHello while its bytes arrive, in any number of TLS
// records. The zero value is ready for one connection.
type HelloParser struct {
	next int    // start of the next unread record in the input
	msg  []byte // handshake bytes of the records before next, if there are several records
	end  int    // end of the ClientHello in the input, when it is complete
}

// Parse examines the argument in, which contains all received bytes, including
// the bytes of earlier calls. It returns ErrNeedMore until the ClientHello is
// complete. All calls together take linear time. A ClientHello in one record,
// with its name in lower case, allocates nothing. Parse does not change in, but
// the result may share memory with it.
func (p *HelloParser) Parse(in []byte) (Hello, error) {
	for {
		rec := in[p.next:]
		if err := p.checkHeader(rec); err != nil {
			return Hello{}, err
		}
		if len(rec) < recordHeader {
			return Hello{}, needMore(in)
		}
		payload, whole := rec[recordHeader:], false
		if n := int(binary.BigEndian.Uint16(rec[3:])); len(payload) >= n {
			payload, whole = payload[:n], true
		}
		msg := payload
		if p.msg != nil {
			msg = p.msg
			if whole {
				msg = append(msg, payload...)
			}
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
			p.msg = append([]byte(nil), msg...) // in belongs to the caller
		}
		p.next += recordHeader + len(payload)
	}
}

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
		return malformed("a record of another type is between its parts")
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
	s := cryptobyte.String(body)
	var sessionID, suites, compression, exts cryptobyte.String
	if !s.Skip(2+32) || // legacy_version, random
		!s.ReadUint8LengthPrefixed(&sessionID) || !s.ReadUint16LengthPrefixed(&suites) || len(suites)%2 != 0 ||
		!s.ReadUint8LengthPrefixed(&compression) {
		return Hello{}, malformed("it ends too early")
	}
	if s.Empty() {
		return h, nil // TLS 1.2 and earlier allow a ClientHello without extensions
	}
	if !s.ReadUint16LengthPrefixed(&exts) || !s.Empty() {
		return Hello{}, malformed("its extensions do not fill it")
	}
	var hasName, hasALPN bool
	for !exts.Empty() {
		var kind uint16
		var ext cryptobyte.String
		ok := exts.ReadUint16(&kind) && exts.ReadUint16LengthPrefixed(&ext)
		switch kind {
		case extServerName:
			ok = ok && !hasName && readServerName(ext, &h)
			hasName = true
		case extALPN:
			ok = ok && !hasALPN && readALPN(ext, &h)
			hasALPN = true
		case extEarlyData:
			h.EarlyData = true
		}
		if !ok {
			return Hello{}, malformed(fmt.Sprintf("extension %d is not well formed", kind))
		}
	}
	return h, nil
}

func readServerName(ext cryptobyte.String, h *Hello) bool {
	var list cryptobyte.String
	if !ext.ReadUint16LengthPrefixed(&list) || !ext.Empty() || list.Empty() {
		return false
	}
	found := false
	for !list.Empty() {
		var kind uint8
		var name cryptobyte.String
		if !list.ReadUint8(&kind) || !list.ReadUint16LengthPrefixed(&name) || name.Empty() {
			return false
		}
		if kind != nameTypeHost {
			continue
		}
		if found {
			return false
		}
		found = true
		h.SNI = normalBytes(name)
	}
	return true
}

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
	for i, c := range b {
		if 'A' <= c && c <= 'Z' {
			b = bytes.Clone(b)
			for ; i < len(b); i++ {
				if 'A' <= b[i] && b[i] <= 'Z' {
					b[i] += 'a' - 'A'
				}
			}
			return b
		}
	}
	return b
}

// normalName is normalBytes of a string.
func normalName(s string) string { return string(normalBytes([]byte(s))) }
