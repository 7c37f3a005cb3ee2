// SPDX-License-Identifier: MPL-2.0

package wanfed

import (
	"context"
	"crypto/tls"
	"errors"
	"net"
	"sync"
	"time"
)

// GRPCConn carries gRPC between two servers of different datacenters: a stream of the session that memberlist's streams go over too.
// So calls cost no connection of their own, and none to a datacenter that nobody calls.
type GRPCConn struct {
	*streamConn
	over *tls.Conn
}

// ConnectionState is that of the session's TLS connection: its certificates say who the peer is.
func (c *GRPCConn) ConnectionState() tls.ConnectionState { return c.over.ConnectionState() }

// Moved is closed when new streams take another connection than this one: a better way was found, or this one is dead or held to
// be. Only for connections of DialGRPC.
func (c *GRPCConn) Migrated() <-chan struct{} { return c.s.gonec }

// Dead says whether the session has ended.
func (c *GRPCConn) IsClosed() bool { return c.s.mux.IsClosed() }

// Doubt says that the peer does not answer, though the connection is open: err is why. The next stream goes another way. Calls under
// way may still be answered. Only for connections of DialGRPC.
func (c *GRPCConn) MarkDead(err error) {
	if c.s.t.forgetSession(c.s) {
		c.s.broke(err)
	}
}

// Suspect opens another way, beside the connection, while the caller tests it because an answer is late. settle is to be called once,
// when the test is done, and after Doubt if the peer is dead: then the next stream takes the other way, which is open already, or
// about to be. Else, or with alive, the other way is given up. Only for connections of DialGRPC. It does not block.
func (c *GRPCConn) OpenStandby() (settle func(alive bool)) { return c.s.suspect() }

// Patience is how long the peer may take to answer before the connection is doubted: two round trips, between MinProbeTimeout and
// MaxProbeTimeout. Only for connections of DialGRPC.
func (c *GRPCConn) ProbeTimeout() time.Duration { return c.s.patience() }

// DialGRPC opens a connection for gRPC to any server of another datacenter: a stream of the session to it. Without a session it
// dials one: that costs a TLS handshake, and later streams none. It returns when ctx ends, at the latest. A ctx that
// is cancelled with a cause of the caller's own says that there is news of the ways: a dial for which others wait begins anew. Its errors are those of
// Dialer.Dial, and those of a stream that is refused.
func (t *Tunnel) DialGRPC(ctx context.Context, dc string) (*GRPCConn, error) {
	if dc == t.own.DC {
		return nil, errors.New("calls inside a datacenter have connections of their own")
	}
	c, err := t.openStream(ctx, poolCalls, target{dc: dc}, "", t.name())
	if err != nil {
		return nil, err
	}
	sc := c.(*streamConn)
	return &GRPCConn{sc, sc.s.conn}, nil
}

// GRPCListener gives the connections that servers opened with DialGRPC to Accept, as *GRPCConn. Who accepts a connection owns it;
// it ends with its session at the latest. Accept fails with net.ErrClosed after Close, or when the tunnel's Run has ended. A second
// listener takes the place of the first.
func (t *Tunnel) GRPCListener() net.Listener {
	l := &callListener{t: t, conns: make(chan *GRPCConn), donec: make(chan struct{})}
	t.calls.Store(l)
	return l
}

type callListener struct {
	t     *Tunnel
	conns chan *GRPCConn
	once  sync.Once
	donec chan struct{} // closed by Close
}

func (l *callListener) Accept() (net.Conn, error) {
	select {
	case c := <-l.conns:
		return c, nil
	case <-l.donec:
	case <-l.t.life.over.Done():
	}
	return nil, &net.OpError{Op: "accept", Net: "tcp", Addr: l.Addr(), Err: net.ErrClosed}
}

func (l *callListener) Close() error {
	l.once.Do(func() { close(l.donec) })
	return nil
}

func (l *callListener) Addr() net.Addr { return nameAddr(ProtoStream) }

// deliverCalls gives c, a stream of over, to who listens for calls.
func (t *Tunnel) deliverCalls(ctx context.Context, c *streamConn, over *tls.Conn) {
	l := t.calls.Load()
	if l == nil {
		t.refuseStream(c, streamNoPool)
		return
	}
	select {
	case <-l.donec:
		t.refuseStream(c, streamNoPool)
		return
	default:
	}
	if !t.answer(c, streamOK) {
		c.Close()
		return
	}
	c.SetDeadline(time.Time{})
	select {
	case l.conns <- &GRPCConn{c, over}:
		return
	case <-l.donec:
	case <-ctx.Done():
	}
	c.Close()
}
