// SPDX-License-Identifier: MPL-2.0

package wanfed

import (
	"context"
	"crypto/tls"
	"errors"
	"net"
	"time"

	"github.com/wanfed/wanfed/internal/broadcast"
)

// GRPCConn carries gRPC between two servers of different datacenters. A
// GRPCConn is a stream of the yamux session that also carries the streams of
// memberlist. gRPC therefore needs no TLS connection of its own.
//
// DialGRPC and the Accept method of GRPCListener return a GRPCConn. Migrated,
// MarkDead, OpenStandby and ProbeTimeout are only for results of DialGRPC.
type GRPCConn struct {
	*streamConn
	tlsConn *tls.Conn
}

// ConnectionState returns the state of the session's TLS connection. The
// certificates in the state authenticate the peer.
func (c *GRPCConn) ConnectionState() tls.ConnectionState { return c.tlsConn.ConnectionState() }

// Migrated returns a channel that is closed when new streams use another
// session: after the migration to a better path, the end of the session, or
// MarkDead.
func (c *GRPCConn) Migrated() <-chan struct{} { return c.session.replacedC }

// IsClosed reports whether the session has ended.
func (c *GRPCConn) IsClosed() bool { return c.st.Session().IsClosed() }

// MarkDead reports that the peer does not respond. The argument err is the
// cause. The next stream uses another path. Calls in flight continue.
func (c *GRPCConn) MarkDead(err error) { c.session.markDead(err) }

// OpenStandby starts to open a standby session over another path, and does not
// block. A caller that misses a response calls OpenStandby, and then sends a
// probe over its connection. If the probe fails, the caller calls MarkDead, and
// the next stream uses the standby. At the end of the probe, the caller calls
// settle once, and alive is the result of the probe. settle closes the standby
// if alive is true or the caller has not called MarkDead.
func (c *GRPCConn) OpenStandby() (settle func(alive bool)) { return c.session.openStandby() }

// ProbeTimeout returns the time to wait for a response before a liveness probe:
// two round trips, within MinProbeTimeout and MaxProbeTimeout.
func (c *GRPCConn) ProbeTimeout() time.Duration { return c.session.probeTimeout() }

// DialGRPC opens a connection for gRPC to any server of another datacenter. The
// connection is a stream of the session to that datacenter. If there is no
// session, DialGRPC dials one, which needs a TLS handshake. Concurrent callers
// share the dial of a session. DialGRPC blocks until the stream is open, it
// fails, or ctx ends. A caller that detects changed paths may cancel ctx with
// a cause of its own: the shared dial then starts again with the new paths for
// the other callers. An error is an error of Dialer.Dial, or reports that the
// peer refused the stream.
func (t *Tunnel) DialGRPC(ctx context.Context, dc string) (*GRPCConn, error) {
	if dc == t.self.DC {
		return nil, errors.New("dial gRPC: the tunnel carries gRPC only to other datacenters")
	}
	c, err := t.openStream(ctx, poolGRPC, target{dc: dc}, "", t.name())
	if err != nil {
		return nil, err
	}
	sc := c.(*streamConn)
	return &GRPCConn{sc, sc.session.conn}, nil
}

// GRPCListener returns a listener for the connections that other servers open
// with DialGRPC. Accept returns a *GRPCConn, which the caller of Accept owns.
// The connection closes when its session ends. Accept fails with net.ErrClosed
// after Close and after the end of Run. A second listener replaces the first.
func (t *Tunnel) GRPCListener() net.Listener {
	l := newConnListener(nameAddr(ProtoStream))
	context.AfterFunc(t.group.ctx, func() { l.Close() })
	t.grpcLn.Store(l)
	return l
}

// deliverGRPC passes c, a stream of tlsConn, to the listener.
func (t *Tunnel) deliverGRPC(ctx context.Context, c *streamConn, tlsConn *tls.Conn) {
	l := t.grpcLn.Load()
	if l == nil || broadcast.IsClosed(l.doneC) {
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
