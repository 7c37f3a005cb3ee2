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
// stream of the yamux session that also carries memberlist's streams, so gRPC
// needs no TLS connection of its own.
type GRPCConn struct {
	*streamConn
	tlsConn *tls.Conn
}

// ConnectionState returns the state of the session's TLS connection. The
// certificates in the state authenticate the peer.
func (c *GRPCConn) ConnectionState() tls.ConnectionState { return c.tlsConn.ConnectionState() }

// Migrated returns a channel that is closed when new streams use another
// connection, because a better path was found, the session has ended, or MarkDead
// was called. It is only for connections of DialGRPC.
func (c *GRPCConn) Migrated() <-chan struct{} { return c.session.replacedC }

// IsClosed reports whether the session has ended.
func (c *GRPCConn) IsClosed() bool { return c.session.mux.IsClosed() }

// MarkDead reports that the peer does not respond on the open connection. The
// argument err is the cause. The next stream uses another path. Calls in flight
// continue. MarkDead is only for connections of DialGRPC.
func (c *GRPCConn) MarkDead(err error) {
	if c.session.t.removeSession(c.session) {
		c.session.reportFailure(err)
	}
}

// OpenStandby starts to open a session over another path. The caller calls it
// when a response is late, and then probes this connection. If the probe fails,
// the caller calls MarkDead, and the next stream uses the standby. The caller
// calls settle once, after the probe. The standby is closed if alive is true or
// MarkDead was not called. OpenStandby does not block. It is only for connections
// of DialGRPC.
func (c *GRPCConn) OpenStandby() (settle func(alive bool)) { return c.session.openStandby() }

// ProbeTimeout returns the time to wait for a response before the caller probes
// the connection: two round trips, within MinProbeTimeout and MaxProbeTimeout. It
// is only for connections of DialGRPC.
func (c *GRPCConn) ProbeTimeout() time.Duration { return c.session.probeTimeout() }

// DialGRPC opens a connection for gRPC to any server of another datacenter. The
// connection is a stream of the session to that datacenter. If there is no
// session, DialGRPC dials one, which takes a TLS handshake. DialGRPC returns when
// ctx ends, at the latest. The caller may cancel ctx with a cause of its own to
// report that the paths have changed: a dial for which other callers wait then
// starts again. DialGRPC returns an error of Dialer.Dial, or reports that the peer
// refused the stream.
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
// connection. The end of the session closes the connection. Accept fails with
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
