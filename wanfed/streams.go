// SPDX-License-Identifier: MPL-2.0

package wanfed

import (
	"context"
	"crypto/tls"
	"errors"
	"io"
	"net"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/hashicorp/yamux"

	"github.com/wanfed/wanfed/tlsutil"
)

// serveStreams accepts the streams of a ProtoStream connection until the
// connection ends. Each stream has its own goroutine, so a silent stream does
// not block other streams. serveStreams returns false, because it does not pass
// the connection on.
func (t *Tunnel) serveStreams(ctx context.Context, c *tls.Conn, p tlsutil.Peer) bool {
	cfg := t.limits.yamuxConfig(t.log.With("peer", p))
	cfg.EnableKeepAlive, cfg.KeepAliveInterval = true, acceptedKeepalive*t.limits.keepaliveInterval
	sessionCtx, fail := context.WithCancelCause(ctx)
	unread := t.unread.session(sessionCtx, p.DC, fail)
	defer unread.end()
	var wg sync.WaitGroup
	defer wg.Wait()
	defer fail(nil) // also closes relayed streams
	s, err := yamux.Server(&yamuxConn{Conn: c, timeout: t.limits.keepaliveTimeout, unread: unread}, cfg)
	if err != nil {
		t.logEnd(ctx, c, p, ProtoStream, nil, err)
		return false
	}
	defer s.Close()
	wg.Go(func() { t.closeIdle(sessionCtx, s) })
	for {
		st, err := s.AcceptStreamWithContext(sessionCtx)
		// A peer that opens streams in spite of refusals loses its session.
		if err == nil && s.NumStreams() > maxOpenStreams {
			err = errTooManyStreams
		}
		if err != nil {
			if fault := context.Cause(sessionCtx); sessionFault(fault) != nil {
				err = fault // yamux returns only that the session has ended
			}
			t.logEnd(ctx, c, p, ProtoStream, sessionFault(err), err)
			return false
		}
		stream := newStreamConn(st, p.Node+"."+p.DC)
		stream.unread = unread.accept(st.StreamID())
		wg.Go(func() { t.serveStream(sessionCtx, stream, s.NumStreams(), p, c) })
	}
}

// closeIdle closes a session without streams after acceptedIdleTimeout. The
// peer, which opened the session, has a shorter timeout.
func (t *Tunnel) closeIdle(ctx context.Context, s *yamux.Session) {
	tick := time.NewTicker(t.limits.acceptedIdleTimeout / 8)
	defer tick.Stop()
	busy := time.Now()
	for {
		select {
		case now := <-tick.C:
			if s.NumStreams() > 0 {
				busy = now
			}
			if now.Sub(busy) >= t.limits.acceptedIdleTimeout {
				s.Close()
				return
			}
		case <-s.CloseChan():
			return
		case <-ctx.Done():
			return
		}
	}
}

// serveStream reads the header of a stream and passes the stream to memberlist,
// to gRPC, or to another server. tlsConn carries the session of the stream, and
// open is the number of streams of the session.
func (t *Tunnel) serveStream(ctx context.Context, c *streamConn, open int, p tlsutil.Peer, tlsConn *tls.Conn) {
	c.SetDeadline(time.Now().Add(t.limits.frameTimeout))
	h, err := readStreamHeader(c)
	if err != nil {
		var reason *refusal
		switch {
		case isTimeout(err):
			reason = faultStalled
		case errors.Is(err, io.ErrUnexpectedEOF):
			reason = faultTruncated
		case errors.Is(err, errStreamVersion), errors.Is(err, errStreamName), errors.Is(err, errFramePool):
			reason = faultHeader
			t.writeStatus(c, streamBadHeader)
		}
		t.logEnd(ctx, c, p, ProtoStream, reason, err)
		c.Close()
		return
	}
	if !t.isTrustedSource(h, p) {
		t.refuseStream(c, streamNotAllowed)
		t.logEnd(ctx, c, p, ProtoStream, faultSource, nil)
		return
	}
	c.peer = nameAddr(h.source)
	switch a := actionFor(t.self, p, h.pool, h.target); {
	case open > maxStreams: // refuses one stream; the session stays
		t.refuseStream(c, streamBusy)
	case a == deliver && h.pool == poolGRPC:
		t.deliverGRPC(ctx, c, tlsConn)
	case a == deliver:
		t.deliverStream(ctx, c, h)
	case a == relay:
		t.relayStream(ctx, c, h, p)
	case a == forbidden:
		t.refuseStream(c, streamNotAllowed)
		t.logEnd(ctx, c, p, ProtoStream, faultLAN, nil)
	default:
		t.refuseStream(c, streamNotAllowed)
	}
}

// isTrustedSource reports whether p may send h with the source of h. The source
// must be p itself. Only a server of this datacenter that relays a stream from
// another datacenter may send another source.
func (t *Tunnel) isTrustedSource(h streamHeader, p tlsutil.Peer) bool {
	if h.source == p.Node+"."+p.DC {
		return true
	}
	_, dc, _ := strings.Cut(h.source, ".")
	return p.DC == t.self.DC && dc != t.self.DC && h.pool == PoolWAN
}

// writeStatus sends s to the opener of the stream. It returns false if it
// fails.
func (t *Tunnel) writeStatus(c *streamConn, s streamStatus) bool {
	c.SetWriteDeadline(time.Now().Add(t.limits.writeTimeout))
	_, err := c.Write([]byte{byte(s)})
	return err == nil
}

func (t *Tunnel) refuseStream(c *streamConn, s streamStatus) {
	t.writeStatus(c, s)
	c.Close()
}

func (t *Tunnel) deliverStream(ctx context.Context, c *streamConn, h streamHeader) {
	tr := t.pool(h.pool)
	switch {
	case tr == nil:
		t.refuseStream(c, streamNoPool)
	case !tr.canAccept():
		t.refuseStream(c, streamBusy)
	case !t.writeStatus(c, streamOK):
		c.Close()
	default:
		c.SetDeadline(time.Time{})
		tr.accept(ctx, c)
	}
}

// relayStream opens the same stream to another server of this datacenter and
// copies both directions.
func (t *Tunnel) relayStream(ctx context.Context, c *streamConn, h streamHeader, p tlsutil.Peer) {
	defer c.Close()
	if t.serverAddr(h.target) == "" {
		t.writeStatus(c, streamUnknownNode)
		return
	}
	openCtx, cancel := context.WithTimeout(ctx, t.limits.openTimeout)
	onward, err := t.openStream(openCtx, h.pool, target{dc: t.self.DC, node: h.target}, "", h.source)
	cancel()
	if err != nil {
		status := streamUnreachable
		var refused *refusedError
		if errors.As(err, &refused) {
			status = refused.status
		}
		t.log.Debug("stream not relayed", "peer", p, "target", h.target, "err", err)
		t.writeStatus(c, status)
		return
	}
	defer onward.Close()
	if t.writeStatus(c, streamOK) {
		c.SetDeadline(time.Time{})
		splice(ctx, c, onward, t.limits.relayIdleTimeout)
	}
}

// splice copies from a to b and from b to a until both directions have ended,
// one direction has failed, neither direction has carried data for the idle
// time, or ctx ends. The end of one direction leaves the other direction open.
// The caller closes both connections.
func splice(ctx context.Context, a, b net.Conn, idle time.Duration) {
	closeBoth := func() {
		a.Close()
		b.Close()
	}
	defer context.AfterFunc(ctx, closeBoth)()
	start := time.Now()
	var active atomic.Int64 // from start to the last byte in either direction, in nanoseconds
	var wg sync.WaitGroup
	for _, dir := range []struct{ dst, src net.Conn }{{a, b}, {b, a}} {
		wg.Go(func() {
			if err := copyStream(dir.dst, dir.src, start, &active, idle); err != nil {
				closeBoth()
			} else if dst, ok := dir.dst.(interface{ CloseWrite() error }); ok {
				_ = dst.CloseWrite()
			}
		})
	}
	wg.Wait()
}

// copyStream copies until src ends, and returns nil. It returns an error if a
// read or write fails, or if no byte moved in either direction for the idle
// time. start and active have the meaning as in splice.
func copyStream(dst, src net.Conn, start time.Time, active *atomic.Int64, idle time.Duration) error {
	buf := make([]byte, 32<<10)
	for {
		src.SetReadDeadline(time.Now().Add(idle))
		n, err := src.Read(buf)
		if n > 0 {
			active.Store(int64(time.Since(start)))
			dst.SetWriteDeadline(time.Now().Add(idle))
			if _, err := dst.Write(buf[:n]); err != nil {
				return err
			}
			active.Store(int64(time.Since(start)))
		}
		switch {
		case err == io.EOF:
			return nil
		case isTimeout(err) && time.Since(start)-time.Duration(active.Load()) < idle:
		case err != nil:
			return err
		}
	}
}

// serveConsulStream passes a ProtoConsulStream connection to the WAN pool. The
// connection is one memberlist stream without a header.
func (t *Tunnel) serveConsulStream(ctx context.Context, c *tls.Conn, p tlsutil.Peer) bool {
	tr := t.pool(PoolWAN)
	if tr == nil || !tr.canAccept() {
		t.log.Debug("stream refused", "peer", p, "alpn", ProtoConsulStream, "remote", c.RemoteAddr())
		return false
	}
	tr.accept(ctx, consulConn{c, nameAddr(p.Node + "." + p.DC)})
	return true
}

// consulConn is a ProtoConsulStream connection whose RemoteAddr is the name of
// the peer, as that of a streamConn.
type consulConn struct {
	*tls.Conn
	peer nameAddr
}

func (c consulConn) RemoteAddr() net.Addr { return c.peer }

// openConsulStream opens a memberlist stream to a server that speaks Consul's
// protocols. It returns nil and no error if the server chose ProtoStream. The
// caller then uses a session.
func (t *Tunnel) openConsulStream(ctx context.Context, to target) (net.Conn, error) {
	c, err := t.cfg.Dialer.Dial(ctx, Target{DC: to.dc, Node: to.node}, ProtoStream, ProtoConsulStream)
	if err != nil {
		return nil, err
	}
	if c.ConnectionState().NegotiatedProtocol == ProtoConsulStream {
		return consulConn{c, nameAddr(to.String())}, nil
	}
	closeConn(c)
	t.setConsul(to.dc, false)
	return nil, nil
}
