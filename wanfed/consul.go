// SPDX-License-Identifier: MPL-2.0

package wanfed

import (
	"context"
	"crypto/tls"
	"net"

	"github.com/wanfed/wanfed/tlsutil"
)

// serveConsulStream passes a ProtoConsulStream connection to the WAN pool. It
// is one memberlist stream without a header.
func (t *Tunnel) serveConsulStream(ctx context.Context, c *tls.Conn, p tlsutil.Peer) bool {
	tr := t.pool(PoolWAN)
	if tr == nil || !tr.hasRoom() {
		t.log.Debug("stream refused", "peer", p, "alpn", ProtoConsulStream, "remote", c.RemoteAddr())
		return false
	}
	tr.accept(ctx, c)
	return true
}

// openConsulStream opens a memberlist stream to a server that speaks Consul's
// protocols. It returns nil, nil if the server chose the tunnel's own protocol;
// the caller then uses a session.
func (t *Tunnel) openConsulStream(ctx context.Context, to target) (net.Conn, error) {
	c, err := t.cfg.Dialer.Dial(ctx, Target{DC: to.dc, Node: to.node}, ProtoStream, ProtoConsulStream)
	if err != nil {
		return nil, err
	}
	if c.ConnectionState().NegotiatedProtocol == ProtoConsulStream {
		return c, nil
	}
	closeConn(c)
	t.setConsul(to.dc, false)
	return nil, nil
}
