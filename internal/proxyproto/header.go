// SPDX-License-Identifier: MPL-2.0

package proxyproto

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net/netip"
)

// Signature is the start of every header of version 2. Neither TLS nor a text
// protocol begins with these bytes.
const Signature = "\r\n\r\n\x00\r\nQUIT\n"

// MaxSize is the maximum size of a header with its TLVs, in bytes. Common TLVs
// have some hundred bytes.
const MaxSize = 4 << 10

// Constants of the specification. The fixed part of a header is the signature,
// a byte with version and command, a byte with family and transport, and the
// length of the rest.
const (
	fixed = 16 // size of the fixed part in bytes

	version = 2

	commandLocal = 0 // the sender itself opened the connection, for example a health check
	commandProxy = 1

	unspec = 0 // families
	inet   = 1
	inet6  = 2
	unix   = 3
	stream = 1 // transport
)

// addressSizes are the sizes in bytes of both addresses with ports, by family.
var addressSizes = [...]int{unspec: 0, inet: 2 * (4 + 2), inet6: 2 * (16 + 2), unix: 2 * 108}

var (
	// ErrNeedMore means that the bytes may be the start of an incomplete
	// header.
	ErrNeedMore = errors.New("the PROXY header is not complete")
	// ErrNoHeader means that the bytes do not begin with a header.
	ErrNoHeader = errors.New("it does not begin with a PROXY header of version 2")
)

// Parse parses the header at the start of in. It returns the address of the
// client and the size of the header in bytes, or ErrNeedMore if the header is
// incomplete. source is the zero AddrPort if the header has no IP address: the
// sender itself opened the connection, or the client uses a Unix socket.
func Parse(in []byte) (source netip.AddrPort, size int, err error) {
	n := min(len(in), len(Signature))
	if string(in[:n]) != Signature[:n] {
		return source, 0, ErrNoHeader
	}
	if len(in) < fixed {
		return source, 0, ErrNeedMore
	}
	command, family, transport := in[12]&15, in[13]>>4, in[13]&15
	size = fixed + int(binary.BigEndian.Uint16(in[14:]))
	switch {
	case in[12]>>4 != version || command > commandProxy:
		err = fmt.Errorf("version %d with command %d is not supported", in[12]>>4, command)
	case size > MaxSize:
		err = fmt.Errorf("it has %d bytes; at most %d are accepted", size, MaxSize)
	case command == commandLocal:
	case int(family) >= len(addressSizes) || family != unspec && transport != stream:
		err = fmt.Errorf("family %d with transport %d is neither TCP nor a Unix socket", family, transport)
	case size < fixed+addressSizes[family]:
		err = fmt.Errorf("its %d bytes are too few for the addresses of family %d", size, family)
	}
	if err != nil {
		return source, 0, fmt.Errorf("PROXY header: %w", err)
	}
	if len(in) < size {
		return source, 0, ErrNeedMore
	}
	if addrs := in[fixed:size]; command == commandProxy && family == inet {
		source = netip.AddrPortFrom(netip.AddrFrom4([4]byte(addrs)), binary.BigEndian.Uint16(addrs[8:]))
	} else if command == commandProxy && family == inet6 {
		source = netip.AddrPortFrom(netip.AddrFrom16([16]byte(addrs)).Unmap(), binary.BigEndian.Uint16(addrs[32:]))
	}
	return source, size, nil
}

// ReadFrom reads a header from a connection, and no byte after the header. It
// returns as soon as the bytes cannot be a header. The caller sets a deadline.
// ReadFrom returns errors of r unchanged, and io.EOF if r ends too early.
func ReadFrom(r io.Reader) (netip.AddrPort, error) {
	b := make([]byte, 0, fixed+addressSizes[unix]+16) // fits a header with few TLVs; grows for others
	for want := fixed; ; {
		n, readErr := r.Read(b[len(b):want])
		b = b[:len(b)+n]
		source, _, err := Parse(b)
		if err != ErrNeedMore {
			return source, err
		}
		if readErr != nil {
			return source, readErr
		}
		if len(b) < fixed {
			continue
		}
		if want = fixed + int(binary.BigEndian.Uint16(b[14:])); want > cap(b) {
			b = append(make([]byte, 0, want), b...)
		}
	}
}

// Append appends a header for a connection from source to local. If an address
// is invalid, the header has no addresses.
func Append(b []byte, source, local netip.AddrPort) []byte {
	b = append(b, Signature...)
	if !source.IsValid() || !local.IsValid() {
		return append(b, version<<4|commandLocal, 0, 0, 0)
	}
	from, to := source.Addr().Unmap(), local.Addr().Unmap()
	family := byte(inet6)
	if from.Is4() && to.Is4() {
		family = inet
	}
	b = append(b, version<<4|commandProxy, family<<4|stream)
	b = binary.BigEndian.AppendUint16(b, uint16(addressSizes[family]))
	for _, a := range [...]netip.Addr{from, to} {
		if family == inet {
			v4 := a.As4()
			b = append(b, v4[:]...)
		} else {
			v6 := a.As16() // converts an IPv4 address to ::ffff:a.b.c.d
			b = append(b, v6[:]...)
		}
	}
	b = binary.BigEndian.AppendUint16(b, source.Port())
	return binary.BigEndian.AppendUint16(b, local.Port())
}
