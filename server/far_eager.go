// SPDX-License-Identifier: MPL-2.0

package server

import (
	"crypto/tls"
	"net"
)

// tlsConn is a connection that says who its peer is: *tls.Conn, *wanfed.CallConn.
type tlsConn interface {
	net.Conn
	ConnectionState() tls.ConnectionState
}

// eager lets gRPC begin its first call a round trip earlier. HTTP/2 has a client begin at once (RFC 9113, section 3.4), but gRPC waits
// for the peer's first SETTINGS. So this reads as an empty one, which changes nothing, before what the peer sends: its own SETTINGS
// follow, and count.
type eager struct {
	tlsConn
	left []byte // of noSettings. Read has one caller, gRPC's reader
}

// noSettings is a SETTINGS frame without any: length 0, type 4, no flags, stream 0 (RFC 9113, sections 4.1 and 6.5).
var noSettings = []byte{0, 0, 0, 4, 0, 0, 0, 0, 0}

func newEager(c tlsConn) *eager { return &eager{c, noSettings} }

func (c *eager) Read(b []byte) (int, error) {
	if len(c.left) == 0 {
		return c.tlsConn.Read(b)
	}
	n := copy(b, c.left)
	c.left = c.left[n:]
	return n, nil
}
