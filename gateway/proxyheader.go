// SPDX-License-Identifier: MPL-2.0

package gateway

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"
)

// Sizes and numbers of the PROXY protocol, version 2 (HAProxy's proxy-protocol.txt, section 2.2).
const (
	proxySignature = "\r\n\r\n\x00\r\nQUIT\n"
	proxyFixed     = 16      // signature, version and command, family and transport, length of the rest
	maxProxyHeader = 4 << 10 // of the whole, with its TLVs; they have some hundred bytes where they are used

	proxyVersion = 2
	proxyLocal   = 0 // the sender speaks for itself
	proxyProxy   = 1

	proxyUnspec = 0
	proxyInet   = 1
	proxyInet6  = 2
	proxyUnix   = 3
	proxyStream = 1 // transport
)

// proxyAddresses are the sizes of the addresses, by family.
var proxyAddresses = [...]int{proxyUnspec: 0, proxyInet: 2 * (4 + 2), proxyInet6: 2 * (16 + 2), proxyUnix: 2 * 108}

// errNoProxyHeader says that a connection does not begin with the signature.
var errNoProxyHeader = errors.New("it does not begin with a PROXY header of version 2")

// readProxyHeader reads the PROXY header that in begins with. It returns ErrNeedMore until that is complete, then its size and the
// client's address, which is not valid if the header names none: then the connection is the sender's own, or from a socket in
// its file system. TLVs are skipped.
func readProxyHeader(in []byte) (source netip.AddrPort, size int, err error) {
	n := min(len(in), len(proxySignature))
	if string(in[:n]) != proxySignature[:n] {
		return source, 0, fmt.Errorf("%w but is %s", errNoProxyHeader, looksLike(in))
	}
	if len(in) < proxyFixed {
		return source, 0, ErrNeedMore
	}
	version, command, family, transport := in[12]>>4, in[12]&15, in[13]>>4, in[13]&15
	size = proxyFixed + int(binary.BigEndian.Uint16(in[14:]))
	switch {
	case version != proxyVersion || command > proxyProxy:
		err = fmt.Errorf("version %d with command %d is not known", version, command)
	case size > maxProxyHeader:
		err = fmt.Errorf("it has %d bytes; at most %d are taken", size, maxProxyHeader)
	case command == proxyLocal:
	case int(family) >= len(proxyAddresses) || family != proxyUnspec && transport != proxyStream:
		err = fmt.Errorf("family %d with transport %d is none of TCP or a socket in the file system", family, transport)
	case size < proxyFixed+proxyAddresses[family]:
		err = fmt.Errorf("its %d bytes are too few for the addresses of family %d", size, family)
	}
	if err != nil {
		return source, 0, fmt.Errorf("PROXY header: %w", err)
	}
	if len(in) < size {
		return source, 0, ErrNeedMore
	}
	if addrs := in[proxyFixed:size]; command == proxyProxy && family == proxyInet {
		source = netip.AddrPortFrom(netip.AddrFrom4([4]byte(addrs)), binary.BigEndian.Uint16(addrs[8:]))
	} else if command == proxyProxy && family == proxyInet6 {
		source = netip.AddrPortFrom(netip.AddrFrom16([16]byte(addrs)).Unmap(), binary.BigEndian.Uint16(addrs[32:]))
	}
	return source, size, nil
}

// appendProxyHeader writes a header for a connection from source to local. If either is not valid, it says no more than that there is
// none to tell of.
func appendProxyHeader(b []byte, source, local netip.AddrPort) []byte {
	b = append(b, proxySignature...)
	if !source.IsValid() || !local.IsValid() {
		return append(b, proxyVersion<<4|proxyLocal, 0, 0, 0)
	}
	from, to := source.Addr().Unmap(), local.Addr().Unmap()
	family := byte(proxyInet6)
	if from.Is4() && to.Is4() {
		family = proxyInet
	}
	b = append(b, proxyVersion<<4|proxyProxy, family<<4|proxyStream)
	b = binary.BigEndian.AppendUint16(b, uint16(proxyAddresses[family]))
	for _, a := range [...]netip.Addr{from, to} {
		if family == proxyInet {
			v4 := a.As4()
			b = append(b, v4[:]...)
		} else {
			v6 := a.As16() // an IPv4 address as ::ffff:a.b.c.d
			b = append(b, v6[:]...)
		}
	}
	b = binary.BigEndian.AppendUint16(b, source.Port())
	return binary.BigEndian.AppendUint16(b, local.Port())
}
