// SPDX-License-Identifier: MPL-2.0

package upstream

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/wanfed/wanfed/gateway/internal/sockets"
	"github.com/wanfed/wanfed/gateway/internal/tlsrecord"
)

// InOrder is a value for the parameter start of DialAny. The addresses are then
// tried in the given order, regardless of their numbers of connections.
const InOrder = -1

// Errors of an attempt or of a selection.
var (
	// ErrLoop is returned for an address that is a listener of this process.
	// Forwarding there would loop until the limit of connections.
	ErrLoop = errors.New("leads back to this gateway; remove the address from the route")
	// ErrClosed is returned for an upstream that closes without an answer.
	ErrClosed = errors.New("the upstream closed the connection")
	// ErrClientGone ends a selection whose client has disconnected.
	ErrClientGone = errors.New("the client has disconnected")
)

// Dialer connects to one of several addresses. Its exported fields must not
// change after the first use. All methods are safe for concurrent use. Its
// goroutines end soon after the call that started them, and Wait joins them.
type Dialer struct {
	// Dial connects to one address. It must return soon when ctx ends.
	// Required.
	Dial func(ctx context.Context, network, addr string) (net.Conn, error)
	// Timeout bounds one attempt to connect. A selection takes at most twice as
	// long. Required.
	Timeout time.Duration
	// AttemptDelay bounds the time without an answer after which the next
	// address is tried too. Required.
	AttemptDelay time.Duration
	// EjectFor bounds the time for which an address that failed is tried last.
	// The address is first probed after an eighth of EjectFor, then after
	// longer pauses. Zero: addresses are not ejected.
	EjectFor time.Duration
	// Own contains the listeners of this process. Connections to them are
	// refused with ErrLoop.
	Own []net.Addr
	// Ejected is called when an address is ejected, because it failed or was
	// slower than another one. It must not block. Nil: not called.
	Ejected func(addr string)

	tracker
	maxConns atomic.Int64
	attempts sync.WaitGroup
}

// Request describes the purpose of a connection. The zero value requests only
// an open connection.
type Request struct {
	// Hello is sent to each address. The first TLS record in response is the
	// answer. Without bytes, an open connection is the answer.
	Hello Hello
	// NewAddrs returns addresses that may have become known since the selection
	// began. Nil: no new addresses.
	NewAddrs func() []string
	// ClientGone reports whether the client has disconnected, which ends the
	// selection. Nil: the client stays connected.
	ClientGone func() bool
}

// Hello is a ClientHello, after a PROXY header if some addresses expect one.
type Hello struct {
	Bytes  []byte
	Header int // size of the PROXY header in bytes; 0: none
	// HeaderTo are the addresses (host:port) that expect the header. Nil: all.
	HeaderTo []string
}

// For returns the bytes for one address.
func (h Hello) For(addr string) []byte {
	if h.HeaderTo == nil || slices.Contains(h.HeaderTo, addr) {
		return h.Bytes
	}
	return h.Bytes[h.Header:]
}

// Result is an established connection.
type Result struct {
	Conn    net.Conn
	Addr    string
	Address *Address // for Dialer.Closed
	// Answer is the first TLS record and the bytes that were read with it. Nil
	// without Request.Hello.
	Answer []byte
}

// SetMaxConns limits the open and pending connections to one address. 0 or
// negative: no limit. Connections that are open already stay, and count.
func (d *Dialer) SetMaxConns(n int) { d.maxConns.Store(int64(n)) }

// DialFirst connects to one of addrs (host:port), in this order except for
// addresses that failed recently. It returns the connection, which the caller
// closes, and its address. An error names the fault of every address.
func (d *Dialer) DialFirst(ctx context.Context, addrs []string) (net.Conn, string, error) {
	won, _, err := d.DialAny(ctx, addrs, InOrder, Request{})
	d.Closed(won.Address) // the caller does not report the end
	return won.Conn, won.Addr, err
}

// Wait returns when all attempts have ended, including abandoned attempts. The
// caller must not begin a dial during Wait.
func (d *Dialer) Wait() { d.attempts.Wait() }

// attempt is the outcome of one connection attempt.
type attempt struct {
	n      int // index of the address in the selection
	conn   net.Conn
	answer []byte
	err    error
}

// DialAny connects to one of addrs. start is InOrder, or the index of the
// address that is preferred among addresses with equally few connections.
// failed is the number of attempts that failed. The caller calls Closed with
// Result.Address when the connection ends.
func (d *Dialer) DialAny(ctx context.Context, addrs []string, start int, req Request) (_ Result, failed int, _ error) {
	var s Selection
	if probe := s.Init(d, addrs, start, req.NewAddrs, time.Now()); probe != "" {
		d.Probe(ctx, probe, req.Hello.For(probe))
	}
	ctx, cancel := context.WithTimeout(ctx, 2*d.Timeout)
	defer cancel()
	results := make(chan attempt)
	next := func() time.Duration {
		n, wait, ok := s.Next(time.Now())
		if ok {
			addr := s.Addr(n)
			d.attempts.Go(func() { d.attempt(ctx, n, addr, req.Hello.For(addr), results) })
		}
		return wait
	}
	timer := time.NewTimer(next())
	defer timer.Stop()
	defer s.Cancel()
	for !s.Over() {
		select {
		case a := <-results:
			if a.err == nil {
				won := s.Won(a.n, time.Now())
				return Result{Conn: a.conn, Addr: s.Addr(a.n), Address: won, Answer: a.answer}, s.Failures(), nil
			}
			s.Failed(a.n, a.err, time.Now())
		case <-timer.C:
			if req.ClientGone != nil && req.ClientGone() {
				return Result{}, s.Failures(), ErrClientGone
			}
			s.AddNew()
		case <-ctx.Done():
			s.Abort(ctx.Err(), time.Now())
			return Result{}, s.Failures(), s.Err()
		}
		timer.Reset(next())
	}
	return Result{}, s.Failures(), s.Err()
}

// attempt tries one address and reports the outcome. If the selection has
// ended, it closes the connection.
func (d *Dialer) attempt(ctx context.Context, n int, addr string, hello []byte, results chan<- attempt) {
	conn, answer, err := d.exchange(ctx, addr, hello)
	select {
	case results <- attempt{n: n, conn: conn, answer: answer, err: err}:
	case <-ctx.Done():
		if conn != nil {
			conn.Close()
		}
	}
}

// Probe checks in a goroutine whether an address that failed works again.
func (d *Dialer) Probe(ctx context.Context, addr string, hello []byte) {
	d.attempts.Go(func() {
		limit := 2*d.AttemptDelay + 2*d.delay(addr)
		ctx, cancel := context.WithTimeout(ctx, min(limit, d.Timeout))
		defer cancel()
		began := time.Now()
		conn, _, err := d.exchange(ctx, addr, hello)
		switch {
		case err == nil:
			d.worked(addr, time.Since(began))
			conn.Close()
		case !errors.Is(ctx.Err(), context.Canceled): // a canceled probe proves nothing
			d.failed(addr, 0, time.Now())
		}
	})
}

// Go runs f in a goroutine that Wait joins.
func (d *Dialer) Go(f func()) { d.attempts.Go(f) }

// exchange connects to one address. If hello is not nil, exchange sends hello
// and waits for the answer.
func (d *Dialer) exchange(ctx context.Context, addr string, hello []byte) (net.Conn, []byte, error) {
	conn, err := d.Connect(ctx, addr)
	if err != nil || hello == nil {
		return conn, nil, err
	}
	sockets.SetKeepalive(conn)
	stop := context.AfterFunc(ctx, func() { conn.SetDeadline(time.Unix(1, 0)) })
	var answer []byte
	if _, err = conn.Write(hello); err == nil {
		answer, err = readAnswer(conn)
	}
	if !stop() { // ctx has ended, and the deadline may be set
		err = ctx.Err()
	}
	if err != nil {
		conn.Close()
		return nil, nil, AnswerError(addr, err)
	}
	return conn, answer, nil
}

// readAnswer reads until the first TLS record is complete. An alert is an
// answer too.
func readAnswer(c net.Conn) ([]byte, error) {
	b := make([]byte, 0, 2<<10)
	for {
		n, readErr := c.Read(b[len(b):cap(b)])
		b = b[:len(b)+n]
		size, err := tlsrecord.Size(b)
		switch {
		case err != nil:
			return nil, err
		case len(b) >= max(size, tlsrecord.HeaderSize):
			return b, nil
		case readErr == io.EOF:
			return nil, ErrClosed
		case readErr != nil:
			return nil, readErr
		}
		if size > cap(b) {
			b = append(make([]byte, 0, size), b...)
		}
	}
}

// Connect opens a connection to one address within Timeout.
func (d *Dialer) Connect(ctx context.Context, addr string) (net.Conn, error) {
	ctx, cancel := context.WithTimeout(ctx, d.Timeout)
	defer cancel()
	conn, err := d.Dial(ctx, "tcp", addr)
	if err == nil && d.IsOwn(sockets.AddrPort(conn.LocalAddr()).Addr(), sockets.AddrPort(conn.RemoteAddr())) {
		conn.Close()
		err = ErrLoop
	}
	if err != nil {
		return nil, DialError(addr, err)
	}
	return conn, nil
}

// DialError adds addr to the error of an attempt to connect.
func DialError(addr string, err error) error { return fmt.Errorf("dial %s: %w", addr, cause(err)) }

// AnswerError adds addr to the error of a connection without an answer.
func AnswerError(addr string, err error) error {
	return fmt.Errorf("no answer to the ClientHello from %s: %w", addr, cause(err))
}

// cause removes the address from a network error.
func cause(err error) error {
	if op, ok := errors.AsType[*net.OpError](err); ok {
		return op.Err
	}
	return err
}

// OwnPort reports whether a listener of this process has this port.
func (d *Dialer) OwnPort(port uint16) bool {
	return slices.ContainsFunc(d.Own, func(own net.Addr) bool {
		ln, ok := own.(*net.TCPAddr)
		return ok && ln.Port == int(port)
	})
}

// IsOwn reports whether a connection from local to remote leads to a listener
// of this process.
func (d *Dialer) IsOwn(local netip.Addr, remote netip.AddrPort) bool {
	return slices.ContainsFunc(d.Own, func(own net.Addr) bool {
		ln, ok := own.(*net.TCPAddr)
		if !ok || ln.Port != int(remote.Port()) {
			return false
		}
		addr, peer := ln.AddrPort().Addr().Unmap(), remote.Addr().Unmap()
		return addr == peer || (!addr.IsValid() || addr.IsUnspecified()) && local.Unmap() == peer
	})
}
