// SPDX-License-Identifier: MPL-2.0

package server

import (
	"crypto/tls"
	"net"

	"github.com/wanfed/wanfed/tlsutil"
)

// hearing is a listener that tells of which datacenter the peer of each connection is: a server that has come from there
// has probably found a way that leads back too.
type hearing struct {
	net.Listener
	domain string
	heard  func(dc string)
}

func (l hearing) Accept() (net.Conn, error) {
	c, err := l.Listener.Accept()
	if t, ok := c.(*tls.Conn); ok && err == nil {
		if certs := t.ConnectionState().PeerCertificates; len(certs) > 0 {
			if p, err := tlsutil.PeerOf(certs[0], l.domain); err == nil && p.Role == tlsutil.RoleServer {
				l.heard(p.DC)
			}
		}
	}
	return c, err
}
