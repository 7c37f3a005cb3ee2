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
	"time"

	"github.com/hashicorp/yamux"

	"github.com/wanfed/wanfed/tlsutil"
)

// serveStreams accepts the streams of a ProtoStream connection until it ends. Each is looked at in a goroutine of its own:
// one that is silent blocks no other.
func (t *Tunnel) serveStreams(ctx context.Context, c *tls.Conn, p tlsutil.Peer) bool {
	s, err := yamux.Server(&muxConn{Conn: c, limit: t.tm.muxWrite}, t.tm.muxConfig(t.log.With("peer", p)))
	if err != nil {
		t.ended(ctx, c, p, ProtoStream, "", err)
		return false
	}
	var wg sync.WaitGroup
	defer wg.Wait()
	defer s.Close()
	wg.Go(func() { t.closeIdle(ctx, s) })
	for {
		st, err := s.AcceptStreamWithContext(ctx)
		if err != nil {
			why := refusal("")
			switch {
			case brokeProtocol(err):
				why = faultFrame
			case isFlood(err):
				why = faultFlood
			}
			t.ended(ctx, c, p, ProtoStream, why, err)
			return false
		}
		if s.NumStreams() > mostStreams {
			t.ended(ctx, c, p, ProtoStream, faultFlood, errStreams)
			return false
		}
		wg.Go(func() { t.serveStream(ctx, newStreamConn(st, p.Node+"."+p.DC), s.NumStreams(), p, c) })
	}
}

// brokeProtocol says whether a session ended because the peer sent what is no yamux.
func brokeProtocol(err error) bool {
	for _, e := range []error{
		yamux.ErrInvalidVersion, yamux.ErrInvalidMsgType, yamux.ErrUnexpectedFlag, yamux.ErrRecvWindowExceeded, yamux.ErrDuplicateStream,
	} {
		if errors.Is(err, e) {
			return true
		}
	}
	return false
}

// closeIdle closes a session on which there was no stream for a while: longer than who opened it waits to do the same.
func (t *Tunnel) closeIdle(ctx context.Context, s *yamux.Session) {
	tick := time.NewTicker(t.tm.peerIdle / 8)
	defer tick.Stop()
	busy := time.Now()
	for {
		select {
		case now := <-tick.C:
			if s.NumStreams() > 0 {
				busy = now
			}
			if now.Sub(busy) >= t.tm.peerIdle {
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

// serveStream reads the header of a stream, which came over a connection, and gives the stream to memberlist, to gRPC, or to another
// server.
func (t *Tunnel) serveStream(ctx context.Context, c *streamConn, open int, p tlsutil.Peer, over *tls.Conn) {
	c.SetDeadline(time.Now().Add(t.tm.body))
	h, err := readStreamHeader(c)
	if err != nil {
		why := refusal("")
		switch {
		case isTimeout(err):
			why = faultStalled
		case errors.Is(err, io.ErrUnexpectedEOF):
			why = faultTruncated
		case errors.Is(err, errStreamVersion), errors.Is(err, errStreamName), errors.Is(err, errFramePool):
			why = faultHeader
			t.answer(c, streamBadHeader)
		}
		t.ended(ctx, c, p, ProtoStream, why, err)
		c.Close()
		return
	}
	if !t.trustSource(h, p) {
		t.answer(c, streamNotAllowed)
		t.ended(ctx, c, p, ProtoStream, faultSource, nil)
		c.Close()
		return
	}
	c.peer = nameAddr(h.source)
	switch v := routeFor(t.own, p, h.pool, h.target); {
	case open > maxStreams:
		t.refuseStream(c, streamBusy)
	case v == deliver && h.pool == poolCalls:
		t.deliverCalls(ctx, c, over)
	case v == deliver:
		t.deliverStream(ctx, c, h)
	case v == relay:
		t.relayStream(ctx, c, h, p)
	case v == forbidden:
		t.refuseStream(c, streamNotAllowed)
		t.ended(ctx, c, p, ProtoStream, faultLAN, nil)
	default:
		t.refuseStream(c, streamNotAllowed)
	}
}

func readStreamHeader(r io.Reader) (streamHeader, error) {
	b := make([]byte, maxStreamHead)
	if _, err := io.ReadFull(r, b[:streamHeadLen]); err != nil {
		return streamHeader{}, err
	}
	_, target, source, err := parseStreamHead([streamHeadLen]byte(b))
	if err != nil {
		return streamHeader{}, err
	}
	b = b[:streamHeadLen+target+source]
	if _, err := io.ReadFull(r, b[streamHeadLen:]); err != nil {
		return streamHeader{}, err
	}
	return decodeStreamHeader(b)
}

// trustSource says whether p may say that h's source opened the stream: it is p itself, or p is a server of this
// datacenter that relays a stream from another one.
func (t *Tunnel) trustSource(h streamHeader, p tlsutil.Peer) bool {
	if h.source == p.Node+"."+p.DC {
		return true
	}
	_, dc, _ := strings.Cut(h.source, ".")
	return p.DC == t.own.DC && dc != t.own.DC && h.pool == PoolWAN
}

// answer sends the status. It is the first byte that the opener gets.
func (t *Tunnel) answer(c *streamConn, s streamStatus) bool {
	c.SetWriteDeadline(time.Now().Add(t.tm.write))
	_, err := c.Write([]byte{byte(s)})
	return err == nil
}

func (t *Tunnel) refuseStream(c *streamConn, s streamStatus) {
	t.answer(c, s)
	c.Close()
}

func (t *Tunnel) deliverStream(ctx context.Context, c *streamConn, h streamHeader) {
	tr := t.pool(h.pool)
	switch {
	case tr == nil:
		t.refuseStream(c, streamNoPool)
	case !tr.hasRoom():
		t.refuseStream(c, streamBusy)
	case !t.answer(c, streamOK):
		c.Close()
	default:
		c.SetDeadline(time.Time{})
		tr.accept(ctx, c)
	}
}

// relayStream opens the same stream to another server of this datacenter and copies both ways.
func (t *Tunnel) relayStream(ctx context.Context, c *streamConn, h streamHeader, p tlsutil.Peer) {
	defer c.Close()
	if t.serverAddr(h.target) == "" {
		t.answer(c, streamUnknownNode)
		return
	}
	openCtx, cancel := context.WithTimeout(ctx, t.tm.open)
	onward, err := t.openStream(openCtx, h.pool, target{dc: t.own.DC, node: h.target}, "", h.source)
	cancel()
	if err != nil {
		status := streamUnreachable
		var refused *refusedError
		if errors.As(err, &refused) {
			status = refused.status
		}
		t.log.Debug("stream not relayed", "peer", p, "target", h.target, "err", err)
		t.answer(c, status)
		return
	}
	defer onward.Close()
	if t.answer(c, streamOK) {
		c.SetDeadline(time.Time{})
		splice(ctx, c, onward, t.tm.streamIdle)
	}
}

// splice copies both ways until both ended, one failed, nothing moved for idle, or ctx ended. The end of one direction is
// passed on alone. The caller closes both.
func splice(ctx context.Context, a, b net.Conn, idle time.Duration) {
	stop := context.AfterFunc(ctx, func() {
		a.Close()
		b.Close()
	})
	defer stop()
	var moved activity
	moved.touch()
	var wg sync.WaitGroup
	for _, d := range [2][2]net.Conn{{a, b}, {b, a}} {
		wg.Go(func() {
			if err := copyStream(d[0], d[1], &moved, idle); err != nil {
				a.Close()
				b.Close()
				return
			}
			if w, ok := d[0].(interface{ CloseWrite() error }); ok {
				_ = w.CloseWrite()
			}
		})
	}
	wg.Wait()
}

// activity is when something last moved, in either direction.
type activity struct {
	mu sync.Mutex
	at time.Time
}

func (a *activity) touch() {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.at = time.Now()
}

func (a *activity) since() time.Duration {
	a.mu.Lock()
	defer a.mu.Unlock()
	return time.Since(a.at)
}

// copyStream copies until src ends (nil) or something fails.
func copyStream(dst, src net.Conn, moved *activity, idle time.Duration) error {
	buf := make([]byte, 32<<10)
	for {
		src.SetReadDeadline(time.Now().Add(idle))
		n, err := src.Read(buf)
		if n > 0 {
			moved.touch()
			dst.SetWriteDeadline(time.Now().Add(idle))
			if _, err := dst.Write(buf[:n]); err != nil {
				return err
			}
			moved.touch()
		}
		switch {
		case err == io.EOF:
			return nil
		case isTimeout(err) && moved.since() < idle:
		case err != nil:
			return err
		}
	}
}
