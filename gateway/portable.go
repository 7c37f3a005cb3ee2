// SPDX-License-Identifier: MPL-2.0

package gateway

import (
	"container/list"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/wanfed/wanfed/gateway/internal/reactor"
	"github.com/wanfed/wanfed/gateway/internal/sockets"
	"github.com/wanfed/wanfed/gateway/internal/upstream"
	"github.com/wanfed/wanfed/internal/backoff"
	"github.com/wanfed/wanfed/internal/proxyproto"
)

// portableEngine forwards each connection with two goroutines. It runs on every
// system and with every kind of listener.
type portableEngine struct {
	*Proxy
	listeners []*Listener
	limit     connLimit
	serving   sync.WaitGroup
}

func newPortableEngine(p *Proxy, listeners []*Listener) *portableEngine {
	return &portableEngine{Proxy: p, listeners: listeners, limit: connLimit{max: p.MaxConns, shedAfter: p.shedAfter}}
}

// Serve implements engine.
func (e *portableEngine) Serve(ctx context.Context) error {
	serving, stop := context.WithCancel(context.WithoutCancel(ctx)) // connections outlive ctx by the drain time
	defer stop()
	accepting, accepted := errgroup.WithContext(ctx)
	for _, l := range e.listeners {
		for _, socket := range l.sockets {
			accepting.Go(func() error { return e.accept(accepted, serving, l, socket) })
			accepting.Go(func() error {
				<-accepted.Done()
				socket.Close()
				return nil
			})
		}
	}
	err := accepting.Wait()
	e.drain.run(e.serving.Wait, stop)
	return err
}

// accept accepts connections from socket until ctx ends. It serves them under
// the context serving.
func (e *portableEngine) accept(ctx, serving context.Context, l *Listener, socket net.Listener) error {
	pause := sockets.MinAcceptPause
	for {
		c, err := socket.Accept()
		if ctx.Err() != nil {
			if c != nil {
				c.Close()
			}
			return nil
		}
		if err == nil {
			pause = sockets.MinAcceptPause
			e.serving.Go(func() { e.handle(serving, l, c) })
			continue
		}
		if !sockets.IsTemporary(err) {
			return fmt.Errorf("accept on %s (listener %s): %w", socket.Addr(), l.name, err)
		}
		if sockets.OutOfFiles(err) && e.refusePending(l, socket) {
			continue
		}
		e.log.Warn("cannot accept connections",
			"listener", l.name, "addr", socket.Addr().String(), "err", err, "duration", pause)
		backoff.Sleep(ctx, pause, nil)
		pause = min(2*pause, sockets.MaxAcceptPause)
	}
}

// refusePending accepts and closes one pending connection with the reserve
// file. It returns false if no connection is pending, or if the reserve is in
// use.
func (e *portableEngine) refusePending(l *Listener, socket net.Listener) (done bool) {
	const timeout = 2 * time.Millisecond
	bounded, ok := socket.(interface{ SetDeadline(time.Time) error })
	if !ok {
		return false
	}
	e.reserve.Use(func() {
		bounded.SetDeadline(time.Now().Add(timeout)) // Accept blocks if the pending connection has ended
		defer bounded.SetDeadline(time.Time{})
		if c, err := socket.Accept(); err == nil {
			done = true
			handler{e.Proxy, l}.RefuseNoFiles(sockets.AddrPort(c.RemoteAddr()))
			c.Close()
		}
	})
	return done
}

// handle owns one client connection from accept to close. The end of ctx closes
// the connection.
func (e *portableEngine) handle(ctx context.Context, l *Listener, client net.Conn) {
	defer client.Close()
	c := &clientConn{Conn: client, accepted: time.Now()}
	s := handler{e.Proxy, l}.Accept(sockets.AddrPort(client.RemoteAddr()), c.accepted, func() bool {
		return e.limit.add(c)
	})
	if s == nil {
		return
	}
	defer e.limit.remove(c)
	defer context.AfterFunc(ctx, func() { client.Close() })()
	sockets.SetKeepalive(client)
	end, failures, err := e.forward(ctx, s, c)
	if ctx.Err() != nil {
		end = reactor.EndStopped // err is a consequence of the stop: it is not a refusal
	} else if err != nil {
		if alert := s.Fail(err, failures); alert != nil {
			client.SetWriteDeadline(time.Now().Add(time.Second))
			client.Write(alert)
		}
	}
	s.Close(end)
}

// forward reads the ClientHello, connects to an upstream and relays bytes until
// the connection ends. An error is the reason why the connection is not
// forwarded.
func (e *portableEngine) forward(
	ctx context.Context, s reactor.Session, c *clientConn,
) (end reactor.End, failures int, _ error) {
	hello, req, err := e.readHello(s, c)
	if err != nil {
		if why := e.limit.closedFor(c); why != nil {
			err = why
		}
		return reactor.EndDone, 0, err
	}
	first := upstream.Hello{Bytes: hello, HeaderTo: req.ProxyTo}
	if req.ProxyHeader {
		header := proxyproto.Append(nil, req.Source, sockets.AddrPort(c.LocalAddr()))
		first.Bytes, first.Header = append(header, hello...), len(header)
	}
	dial := upstream.Request{
		NewAddrs:   s.NewUpstreams,
		ClientGone: func() bool { return sockets.PeerClosed(c.Conn, req.Race) },
	}
	if req.Race {
		first.Bytes = slices.Clone(first.Bytes) // abandoned attempts may outlive this connection
		dial.Hello = first
	}
	won, failures, err := e.dialer.DialAny(ctx, req.Addrs, req.Start, dial)
	if err != nil {
		return reactor.EndDone, failures, err
	}
	hello = first.For(won.Addr)
	defer e.dialer.Closed(won.Address)
	defer won.Conn.Close()
	defer context.AfterFunc(ctx, func() { won.Conn.Close() })()
	if won.Answer == nil {
		sockets.SetKeepalive(won.Conn)
		if err := e.write(won.Conn, hello); err != nil {
			return reactor.EndDone, failures, err
		}
	}
	s.Connected(won.Addr, failures, time.Now())
	if len(won.Answer) > 0 && e.write(c, won.Answer) != nil {
		return reactor.EndDone, 0, nil // the client has disconnected
	}
	s.Count(len(hello), len(won.Answer))
	hello, req, won.Answer = nil, reactor.Request{}, nil // an idle connection keeps no buffer
	if relay(c.Conn, won.Conn, s.Count) != nil {
		return reactor.EndCut, 0, nil
	}
	return reactor.EndDone, 0, nil
}

// readHello reads until the ClientHello is complete. It returns the ClientHello
// and the bytes that were read after it.
func (e *portableEngine) readHello(s reactor.Session, c *clientConn) ([]byte, reactor.Request, error) {
	c.SetReadDeadline(c.accepted.Add(e.helloTimeout))
	s.Wait(func(why error) { e.limit.close(c, why) })
	buf := make([]byte, 0, 2<<10)
	for {
		n, readErr := c.Read(buf[len(buf):cap(buf)])
		buf = buf[:len(buf)+n]
		req, err := s.Receive(buf, time.Now())
		if err == nil && !e.limit.helloReceived(c) {
			err = net.ErrClosed
		}
		switch {
		case err == nil:
			c.SetReadDeadline(time.Time{})
			return req.Hello, req, nil
		case err != ErrNeedMore:
			return nil, req, err
		case readErr != nil:
			return nil, req, readErr
		}
		if len(buf) == cap(buf) {
			if err := s.HoldHello(2 * cap(buf)); err != nil {
				return nil, req, err
			}
			buf = append(make([]byte, 0, min(2*cap(buf), MaxHelloSize+proxyproto.MaxSize)), buf...)
		}
	}
}

// write writes all of b within Config.DialTimeout.
func (e *portableEngine) write(c net.Conn, b []byte) error {
	c.SetWriteDeadline(time.Now().Add(e.dialer.Timeout))
	if _, err := c.Write(b); err != nil {
		return err
	}
	return c.SetWriteDeadline(time.Time{})
}

// clientConn is a client connection.
type clientConn struct {
	net.Conn
	accepted time.Time

	// The mutex of connLimit guards these fields.
	waiting *list.Element // in connLimit.waiting; nil: the ClientHello is complete
	shed    error         // why it was closed for another connection; nil: it was not
}

// connLimit bounds the number of client connections.
type connLimit struct {
	max       func() int
	shedAfter time.Duration

	mu      sync.Mutex
	open    int       // connections that were not shed
	waiting list.List // of *clientConn without a ClientHello, oldest first
}

// add counts c. At the limit, add closes the oldest connection without a
// ClientHello. If no such connection is older than shedAfter, add returns
// false.
func (l *connLimit) add(c *clientConn) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.open >= l.max() {
		front := l.waiting.Front()
		if front == nil {
			return false
		}
		oldest := front.Value.(*clientConn)
		if c.accepted.Sub(oldest.accepted) < l.shedAfter {
			return false
		}
		l.closeLocked(oldest, reactor.ErrShed)
	}
	l.open++
	c.waiting = l.waiting.PushBack(c)
	return true
}

// helloReceived records that the ClientHello of c is complete. From now on, c
// is not closed for another connection. helloReceived returns false if that has
// happened already.
func (l *connLimit) helloReceived(c *clientConn) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.endWaitLocked(c)
	return c.shed == nil
}

// close closes c because of why, unless its ClientHello is complete.
func (l *connLimit) close(c *clientConn, why error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if c.waiting != nil {
		l.closeLocked(c, why)
	}
}

func (l *connLimit) closeLocked(c *clientConn, why error) {
	l.removeLocked(c)
	c.shed = why
	c.Close() // does not block: nothing was sent
}

// closedFor returns why c was closed for another connection, or nil.
func (l *connLimit) closedFor(c *clientConn) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	return c.shed
}

// remove ends the count of c.
func (l *connLimit) remove(c *clientConn) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.removeLocked(c)
}

func (l *connLimit) removeLocked(c *clientConn) {
	l.endWaitLocked(c)
	if c.shed == nil {
		l.open--
	}
}

func (l *connLimit) endWaitLocked(c *clientConn) {
	if c.waiting != nil {
		l.waiting.Remove(c.waiting)
		c.waiting = nil
	}
}

// A direction is copied in pieces, because counters change after each piece. If
// a piece takes less than pieceTime, the next piece is larger.
const (
	minPiece  = 32 << 10 // bytes
	maxPiece  = 16 << 20
	pieceTime = 100 * time.Millisecond
)

// relay moves bytes both ways until both directions have ended, or a connection
// is closed. An end of data leaves the other direction open. A failure ends
// both directions, and relay returns its error. Between two bare *net.TCPConn
// the kernel moves the bytes (splice). The caller closes both connections.
func relay(client, upstream net.Conn, count func(up, down int)) error {
	var downErr error
	var wg sync.WaitGroup
	var clientEnded, upstreamEnded atomic.Bool
	wg.Go(func() {
		downErr = relayOneWay(client, upstream, func(n int) { count(0, n) }, &clientEnded, &upstreamEnded)
	})
	upErr := relayOneWay(upstream, client, func(n int) { count(n, 0) }, &upstreamEnded, &clientEnded)
	wg.Wait()
	return errors.Join(upErr, downErr)
}

// relayOneWay moves bytes from src to dst until src ends, and sets srcEnded. A
// failure after the end of dst is a normal end: a peer that closes right after
// its last data answers later data, usually a TLS close_notify, with a reset.
func relayOneWay(dst, src net.Conn, count func(int), dstEnded, srcEnded *atomic.Bool) error {
	err := copyAll(dst, src, count)
	if err == nil {
		srcEnded.Store(true) // before dst can receive the end of data and respond
		err = closeWrite(dst)
	}
	if err != nil && dstEnded.Load() {
		dst.Close()
		src.Close()
		return nil
	}
	if err != nil {
		abort(dst)
		abort(src)
	}
	return err
}

// copyAll copies until src ends. TCPConn.ReadFrom also splices from a
// LimitedReader, if the LimitedReader directly wraps src.
func copyAll(dst, src net.Conn, count func(int)) error {
	piece := io.LimitedReader{R: src}
	for size := int64(minPiece); ; {
		piece.N = size
		begin := time.Now()
		n, err := io.Copy(dst, &piece)
		count(int(n))
		if err != nil || n < size {
			return err
		}
		if time.Since(begin) < pieceTime {
			size = min(size*4, maxPiece)
		} else {
			size = max(size/4, minPiece)
		}
	}
}

func closeWrite(c net.Conn) error {
	if h, ok := c.(interface{ CloseWrite() error }); ok {
		return h.CloseWrite()
	}
	return c.Close()
}

// abort closes c with a reset, from which the peer can detect missing data.
func abort(c net.Conn) {
	if t, ok := c.(*net.TCPConn); ok {
		t.SetLinger(0)
	}
	c.Close()
}
