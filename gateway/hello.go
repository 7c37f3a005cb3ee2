// SPDX-License-Identifier: MPL-2.0

package gateway

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"iter"
)

// MaxHelloSize bounds a ClientHello with its record headers, in bytes.
const MaxHelloSize = 64 << 10

// Sizes and numbers of RFC 8446, sections 4 and 5.1, RFC 6066, section 3, and RFC 7301, section 3.1.
const (
	recordHeader    = 5
	maxRecord       = 16 << 10
	recordHandshake = 22
	messageHeader   = 4
	clientHello     = 1
	extServerName   = 0
	extALPN         = 16
	extEarlyData    = 42
	nameTypeHost    = 0
)

// Hello is what a ClientHello says in the clear. Its names are in the memory that it was read from, and change with that.
type Hello struct {
	// SNI is the wanted server in lower case, without a trailing dot; empty if the client names none.
	SNI []byte
	// EarlyData says that the client sends data with its hello (0-RTT): a second server that got them could act on them too.
	EarlyData bool

	alpn []byte // the list of RFC 7301, section 3.1, which is well formed; empty: the client offers none
}

// ALPN gives the protocol ids that the client offers, best first.
func (h Hello) ALPN() iter.Seq[[]byte] {
	return func(yield func([]byte) bool) {
		for r := (reader{b: h.alpn}); len(r.b) > 0; {
			if !yield(r.vector(1).b) {
				return
			}
		}
	}
}

// Errors of HelloParser.Parse, besides *NotTLSError.
var (
	// ErrNeedMore says that what arrived so far can be the beginning of a ClientHello.
	ErrNeedMore = errors.New("ClientHello is not complete")
	// ErrHelloTooLarge says that the ClientHello would not end within MaxHelloSize bytes.
	ErrHelloTooLarge = fmt.Errorf("ClientHello is larger than %d KiB", MaxHelloSize>>10)
)

// NotTLSError says that a connection does not begin with a ClientHello.
type NotTLSError struct {
	// Looks is what the bytes look like, such as "a plain HTTP request".
	Detected string
}

func (e *NotTLSError) Error() string { return "not a TLS ClientHello but " + e.Detected }

// HelloParser takes a ClientHello apart while its bytes arrive, over any number of TLS records. The zero value is ready for
// one connection.
type HelloParser struct {
	next int    // where in the input the next unread record begins
	msg  []byte // the handshake bytes of the records before it, if the hello did not fit into one
	end  int    // where in the input the records of the hello end, when it is complete
}

// Parse looks at in: everything that was received so far, the bytes of earlier calls included. It returns ErrNeedMore until
// the hello is complete. Its work over all calls is linear in the input. A hello that came in one record, with its name in lower
// case, allocates nothing. The result may share memory with in, which is not changed.
func (p *HelloParser) Parse(in []byte) (Hello, error) {
	for {
		rec := in[p.next:]
		if err := p.checkHeader(rec); err != nil {
			return Hello{}, err
		}
		if len(rec) < recordHeader {
			return Hello{}, more(in)
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
			return Hello{}, more(in)
		}
		if len(msg) >= size {
			p.end = p.next + recordHeader + len(payload)
			return parseBody(msg[messageHeader:size])
		}
		if p.msg = msg; p.next == 0 {
			p.msg = append([]byte(nil), msg...) // in is the caller's
		}
		p.next += recordHeader + len(payload)
	}
}

func more(in []byte) error {
	if len(in) >= MaxHelloSize {
		return ErrHelloTooLarge
	}
	return ErrNeedMore
}

// checkHeader refuses a record header as soon as enough of it is there.
func (p *HelloParser) checkHeader(rec []byte) error {
	first := p.next == 0
	switch {
	case len(rec) >= 1 && rec[0] != recordHandshake, len(rec) >= 2 && rec[1] != 3:
		if first {
			return &NotTLSError{looksLike(rec)}
		}
		return malformed("a record of another kind stands between its parts")
	case len(rec) < recordHeader:
		return nil
	}
	switch n := int(binary.BigEndian.Uint16(rec[3:])); {
	case n == 0:
		return malformed("a record is empty")
	case n > maxRecord:
		return malformed(fmt.Sprintf("a record has %d bytes; at most %d are allowed", n, maxRecord))
	}
	return nil
}

// messageSize returns the size of the handshake message that msg begins, with its header; more than msg has while the
// header is not complete.
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

func malformed(why string) error { return &NotTLSError{"a broken one: " + why} }

// parseBody reads struct ClientHello of RFC 8446, section 4.1.2.
func parseBody(b []byte) (Hello, error) {
	var (
		h                 Hello
		r                 = reader{b: b}
		hasName, hasProto bool
	)
	r.take(2 + 32)   // legacy_version, random
	r.take(r.int(1)) // legacy_session_id
	suites := r.int(2)
	r.take(suites)
	r.take(r.int(1)) // legacy_compression_methods
	if r.bad || suites%2 != 0 {
		return Hello{}, malformed("it ends too early")
	}
	if len(r.b) == 0 {
		return h, nil // no extensions: TLS 1.2 and before allow that
	}
	if exts := r.vector(2); !r.bad && len(r.b) == 0 {
		r = exts
	} else {
		return Hello{}, malformed("its extensions do not fill it")
	}
	for len(r.b) > 0 {
		kind, ext := r.int(2), r.vector(2)
		ok := !r.bad
		switch kind {
		case extServerName:
			ok = ok && !hasName && readServerName(ext, &h)
			hasName = true
		case extALPN:
			ok = ok && !hasProto && readALPN(ext, &h)
			hasProto = true
		case extEarlyData:
			h.EarlyData = true
		}
		if !ok {
			return Hello{}, malformed(fmt.Sprintf("extension %d is not well formed", kind))
		}
	}
	return h, nil
}

func readServerName(ext reader, h *Hello) bool {
	list := ext.vector(2)
	if ext.bad || len(ext.b) > 0 || len(list.b) == 0 {
		return false
	}
	found := false
	for len(list.b) > 0 {
		kind, name := list.int(1), list.vector(2)
		if list.bad || len(name.b) == 0 {
			return false
		}
		if kind != nameTypeHost {
			continue
		}
		if found {
			return false
		}
		found = true
		h.SNI = normalBytes(name.b)
	}
	return true
}

func readALPN(ext reader, h *Hello) bool {
	list := ext.vector(2)
	if ext.bad || len(ext.b) > 0 || len(list.b) == 0 {
		return false
	}
	h.alpn = list.b
	for len(list.b) > 0 {
		if id := list.vector(1); list.bad || len(id.b) == 0 {
			return false
		}
	}
	return true
}

// normalBytes brings a DNS name into the form in which names are compared: ASCII lower case, no trailing dot. It does not change
// b, and allocates only for upper case.
func normalBytes(b []byte) []byte {
	b = bytes.TrimSuffix(b, []byte{'.'})
	for _, c := range b {
		if 'A' <= c && c <= 'Z' {
			return lower(bytes.Clone(b))
		}
	}
	return b
}

// normalName is normalBytes of a string.
func normalName(s string) string { return string(normalBytes([]byte(s))) }

// lower changes b. It leaves bytes above ASCII alone, as a comparison of DNS names does (RFC 4343, section 3).
func lower(b []byte) []byte {
	for i, c := range b {
		if 'A' <= c && c <= 'Z' {
			b[i] += 'a' - 'A'
		}
	}
	return b
}

// reader takes values off the front of b. Once b is too short it is bad and gives zeros.
type reader struct {
	b   []byte
	bad bool
}

func (r *reader) take(n int) []byte {
	if r.bad || len(r.b) < n {
		r.b, r.bad = nil, true
		return nil
	}
	v := r.b[:n]
	r.b = r.b[n:]
	return v
}

// int takes a big-endian number of size bytes.
func (r *reader) int(size int) int {
	n := 0
	for _, b := range r.take(size) {
		n = n<<8 | int(b)
	}
	return n
}

// vector takes a length of size bytes and that many bytes.
func (r *reader) vector(size int) reader { return reader{b: r.take(r.int(size))} }
