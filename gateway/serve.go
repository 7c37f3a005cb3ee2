// SPDX-License-Identifier: MPL-2.0

package gateway

import (
	"context"
	"errors"
	"log/slog"
	"net"
	"os"
	"slices"
	"sync"
	"time"

	"github.com/wanfed/wanfed/internal/proxyproto"
)

// Dead peers: a silent connection is probed after keepIdle, then each keepInterval; userTimeout ends one whose sent data or
// probes stay unanswered.
const (
	keepIdle     = 15 * time.Second
	keepInterval = 5 * time.Second
	keepCount    = 3
	userTimeout  = 30 * time.Second
)

// helloBuffer is what most ClientHellos fit in, in bytes; a longer one gets a larger buffer.
const helloBuffer = 2 << 10

var helloBuffers = sync.Pool{New: func() any { return new([helloBuffer]byte) }}

// own owns one client connection from its accept to its end.
func (e *netEngine) own(ctx context.Context, s *Listener, client net.Conn) {
	c := &conn{client: client, side: s, began: time.Now(), origin: origin{remote: remoteOf(client)}}
	s.accepted.Add(1)
	c.trip = e.access.begin(s, c.remote, c.began)
	defer func() { c.trip.over(time.Now()) }()
	if reason, ok := c.enter(s); !ok {
		e.refuse(c, &refusal{reason: reason})
		client.Close()
		return
	}
	defer c.leave(s)
	if !e.conns.add(c) {
		e.refuse(c, &refusal{reason: ReasonLimit})
		client.Close()
		return
	}
	defer e.conns.remove(c)
	s.active.Add(1)
	defer s.active.Add(^uint64(0))
	tune(client)
	if r := e.forward(ctx, c); r != nil && ctx.Err() == nil { // else it is this gateway that ends: not the client's fault
		e.refuse(c, r)
		r.tell(client)
	}
	if ctx.Err() != nil {
		c.trip.endsBy(endStopped)
	}
}

func (e *netEngine) refuse(c *conn, r *refusal) {
	c.trip.endsBy(r.reason.String())
	e.refusals.count(c.side, c.name(), r)
}

// forward reads the hello, connects to where it wants and relays until the end, or says why not.
func (e *netEngine) forward(ctx context.Context, c *conn) *refusal {
	small := helloBuffers.Get().(*[helloBuffer]byte)
	defer func() {
		if small != nil {
			helloBuffers.Put(small)
		}
	}()
	var mem share
	defer e.hellos.free(&mem)
	hello, peeked, err := e.readHello(c, small[:0], &mem)
	if err != nil {
		return badHello(err, !e.conns.hello(c), e.helloTimeout)
	}
	chosen := time.Now()
	c.trip.helloCame(hello.SNI, chosen.Sub(c.began))
	to, refused := c.side.Table().choose(hello)
	c.side.noteHello(to, chosen.Sub(c.began))
	if refused != nil {
		return refused
	}
	sni := string(hello.SNI) // the buffer is given back
	if to.ProxyProtocol {
		peeked = append(proxyproto.Append(nil, c.remote, localOf(c.client)), peeked...)
	}
	won, failed, err := e.dialer.target(ctx, to, e.request(c, to, hello, peeked))
	c.side.dialFailures.Add(uint64(failed))
	if errors.Is(err, errGone) {
		return &refusal{reason: ReasonClientGone, sni: sni}
	}
	if err != nil {
		return unreachable(sni, err)
	}
	defer e.dialer.evidence.closed(won.known)
	defer won.answer.free()
	upstream := won.conn
	took := time.Since(chosen)
	c.side.noteDial(to, took)
	c.trip.reached(won.addr, took)
	if !e.conns.routed(c, upstream) {
		upstream.Close()
		return nil
	}
	if won.answer.b == nil {
		tune(upstream)
		if err := e.write(upstream, peeked); err != nil {
			return &refusal{reason: ReasonUpstreamUnreachable, sni: sni, err: err}
		}
	} else if e.write(c.client, won.answer.b) != nil {
		return nil // the client has gone
	}
	up, down := c.trip.tallies(c.side)
	up.Add(uint64(len(peeked)))
	down.Add(uint64(len(won.answer.b)))
	won.answer.free()
	helloBuffers.Put(small)
	small, peeked = nil, nil // an idle connection keeps no buffer
	e.hellos.free(&mem)
	if e.log.Enabled(ctx, slog.LevelDebug) {
		e.log.Debug("connection routed", "listener", c.side.name, "remote", c.name(),
			"sni", sni, "addr", upstream.RemoteAddr().String())
	}
	if relay(c.client, upstream, up, down) != nil {
		c.trip.endsBy(endCut)
	}
	return nil
}

// request says how to choose among the addresses of to: by their answers to the hello, if there are several and it does no harm
// that more than one gets it. Addresses that a newer table gives the same name are asked too.
func (e *netEngine) request(c *conn, to *target, hello Hello, peeked []byte) request {
	table := c.side.Table()
	ask := len(to.To) > 1 && !hello.EarlyData
	req := request{
		gone: func() bool { return gone(c.client, ask) },
		news: func() []string {
			now := c.side.Table()
			if now == table {
				return nil
			}
			table = now
			if t := now.find(hello.SNI); t != nil && t.ProxyProtocol == to.ProxyProtocol {
				return t.To
			}
			return nil
		},
	}
	if ask {
		req.hello = slices.Clone(peeked) // attempts that are given up may need it for longer than this connection
	}
	return req
}

// name is the client's address for logs.
func (c *conn) name() string {
	if c.remote.IsValid() {
		return c.remote.String()
	}
	return c.client.RemoteAddr().String()
}

// write writes all of b in the time that a dial may take.
func (e *netEngine) write(c net.Conn, b []byte) error {
	c.SetWriteDeadline(time.Now().Add(e.dialTimeout))
	if _, err := c.Write(b); err != nil {
		return err
	}
	return c.SetWriteDeadline(time.Time{})
}

// readHello reads until the ClientHello is complete. It returns everything that was read, in buf or in a larger buffer, whose share
// the caller frees.
func (e *netEngine) readHello(c *conn, buf []byte, mem *share) (Hello, []byte, error) {
	c.client.SetReadDeadline(c.began.Add(e.helloTimeout))
	var parser HelloParser
	for {
		n, readErr := c.client.Read(buf[len(buf):cap(buf)])
		buf = buf[:len(buf)+n]
		rest, err := c.header(c.side, c.trip, buf)
		var hello Hello
		if err == nil {
			buf = rest
			hello, err = parser.Parse(buf)
		}
		if err == nil && !e.conns.hello(c) {
			err = net.ErrClosed
		}
		if err == nil {
			c.client.SetReadDeadline(time.Time{})
			hello.EarlyData = hello.EarlyData || parser.end < len(buf)
			return hello, buf, nil
		}
		if err != ErrNeedMore {
			return Hello{}, nil, err
		}
		if readErr != nil {
			return Hello{}, nil, readErr
		}
		if len(buf) == cap(buf) {
			if !e.hellos.grow(mem, 2*cap(buf)+cap(parser.msg)) {
				return Hello{}, nil, errHelloMemory
			}
			buf = append(make([]byte, 0, min(max(2*cap(buf), helloBuffer), MaxHelloSize)), buf...)
		}
	}
}

// badHello says what a failure to read a hello was; shed: it was closed to make room.
func badHello(err error, shed bool, timeout time.Duration) *refusal {
	if shed {
		return &refusal{reason: ReasonLimit, err: errors.New("closed to make room: it had not sent a ClientHello yet")}
	}
	if r, ok := errors.AsType[*refusal](err); ok {
		return r
	}
	if _, ok := errors.AsType[*NotTLSError](err); ok {
		return &refusal{reason: ReasonNotTLS, err: err}
	}
	switch {
	case errors.Is(err, ErrHelloTooLarge):
		return &refusal{reason: ReasonHelloTooLarge, err: err}
	case errors.Is(err, os.ErrDeadlineExceeded):
		return &refusal{reason: ReasonHelloTimeout, err: errors.New("no complete ClientHello within " + timeout.String())}
	}
	return &refusal{reason: ReasonHelloCut, err: err}
}

// tune makes the kernel find out when the peer of a TCP connection is dead.
func tune(c net.Conn) {
	if t, ok := c.(*net.TCPConn); ok {
		// Errors mean that the connection has ended, which the next read says too.
		t.SetKeepAliveConfig(net.KeepAliveConfig{Enable: true, Idle: keepIdle, Interval: keepInterval, Count: keepCount})
		setUserTimeout(t, userTimeout)
	}
}
