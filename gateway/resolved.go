// SPDX-License-Identifier: MPL-2.0

package gateway

import (
	"context"
	"net"

	"github.com/wanfed/wanfed/internal/netaddr"
)

// refusedClass returns the kinds of addresses to which the host name of an upstream
// address (host:port) must not resolve, according to all routes.
func (p *Proxy) refusedClass(addr string) (class netaddr.Class) {
	if listeners := p.listeners.Load(); listeners != nil {
		for _, l := range *listeners {
			class |= l.Table().refuse[addr]
		}
	}
	return class
}

// dial connects to an upstream. It checks each resolved address of a host name
// before it connects.
func (p *Proxy) dial(ctx context.Context, network, addr string) (net.Conn, error) {
	d := net.Dialer{KeepAlive: -1, Control: netaddr.Control(p.refusedClass(addr))} // the engines set keepalive
	return d.DialContext(ctx, network, addr)
}
