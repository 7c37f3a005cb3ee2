// SPDX-License-Identifier: MPL-2.0

package wanfed

import (
	"context"
	"crypto/tls"
	"errors"
	"net"
	"time"
)

// GRPCConn carries gRPC between two servers of different datacenters. It is a
// stream of the yamux session that also carries memberlist's streams. So gRPC
// needs no TLS connection of its own, and none to a datacenter that is not
// called.
type GRPCConn struct {
	*streamConn
	tlsConn *tls.Conn
}

// ConnectionState is that of the session's TLS connection. Its certificates
// authenticate the peer.
func (c *GRPCConn) ConnectionState() tls.ConnectionState { return c.tlsConn.ConnectionState() }

// Migrated returns a channel that is closed when new streams use another
// connection: a better path was found, or this connection is dead or was marked
// so. It is only for connections of DialGRPC.
func (c *GRPCConn) Migrated() <-chan struct{} { return c.session.replacedC }

// IsClosed reports whether the session has ended.
func (c *GRPCConn) IsClosed() bool { return c.session.mux.IsClosed() }

// MarkDead reports that the peer does not answer although the connection is
// open; err is the cause. The next stream uses another path. Calls in flight
// may still be answered. It is only for connections of DialGRPC.
func (c *GRPCConn) MarkDead(err error) {
	if c.session.t.removeSession(c.session) {
		c.session.reportFailure(err)
	}
}

// OpenStandby starts to open a session over another path. The caller calls it
// when a response is late, and then probes this connection. If the peer is
// dead, the caller calls MarkDead: the next stream uses the standby, which is
// open by then or about to be. The caller calls settle once, at the end; with
// alive, or without a MarkDead before, the standby is closed. OpenStandby does
// not block. It is only for connections of DialGRPC.
func (c *GRPCConn) OpenStandby() (settle func(alive bool)) { return c.session.openStandby() }

// ProbeTimeout is how long a response may take before the connection should be
// probed: two round trips, within MinProbeTimeout and MaxProbeTimeout. It is
// only for connections of DialGRPC.
func (c *GRPCConn) ProbeTimeout() time.Duration { return c.session.probeTimeout() }

// DialGRPC opens a connection for gRPC to any server of another datacenter: a
// stream of the session to it. Without a session it dials one, which takes a
// TLS handshake; later streams need none. DialGRPC returns when ctx ends, at
// the latest. If ctx is cancelled with a cause of the caller's own, that means
// that the paths have changed, and a dial that others wait for starts again.
// Errors are those of Dialer.Dial, and those of a refused stream.
func (t *Tunnel) DialGRPC(ctx context.Context, dc string) (*GRPCConn, error) {
	if dc == t.self.DC {
		return nil, errors.New("gRPC inside a datacenter uses connections of its own")
	}
	c, err := t.openStream(ctx, poolGRPC, target{dc: dc}, "", t.name())
	if err != nil {
		return nil, err
	}
	sc := c.(*streamConn)
	return &GRPCConn{sc, sc.session.conn}, nil
}

// GRPCListener returns a listener whose Accept returns the connections that
// servers opened with DialGRPC, as *GRPCConn. The caller of Accept owns the
// connection, which ends with its session at the latest. Accept fails with
// net.ErrClosed after Close, and when the tunnel's Run has ended. A second
// listener replaces the first.
func (t *Tunnel) GRPCListener() net.Listener {
	l := newConnListener(nameAddr(ProtoStream))
	context.AfterFunc(t.group.done, func() { l.Close() })
	t.grpcLn.Store(l)
	return l
}

// deliverGRPC passes c, a stream of tlsConn, to the listener.
func (t *Tunnel) deliverGRPC(ctx context.Context, c *streamConn, tlsConn *tls.Conn) {
	l := t.grpcLn.Load()
	if l == nil || isClosed(l.donec) {
		t.refuseStream(c, streamNoPool)
		return
	}
	if !t.writeStatus(c, streamOK) {
		c.Close()
		return
	}
	c.SetDeadline(time.Time{})
	if !l.pass(ctx, &GRPCConn{c, tlsConn}) {
		c.Close()
	}
}
