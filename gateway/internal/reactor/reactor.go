// SPDX-License-Identifier: MPL-2.0

package reactor

import (
	"errors"
	"log/slog"
	"net"
	"net/netip"
	"time"

	"github.com/wanfed/wanfed/gateway/internal/sockets"
	"github.com/wanfed/wanfed/gateway/internal/upstream"
)

// MaxHello bounds a ClientHello and the bytes before it, such as a PROXY
// header, in bytes.
const MaxHello = 64 << 10

// Errors that an engine passes to Session.Fail. An engine also passes io.EOF if
// the client closed before its ClientHello, os.ErrDeadlineExceeded if the
// client sent its ClientHello too late, and errors of sockets, of Session
// methods and of package upstream.
var (
	// ErrNeedMore is returned by Session.Receive while the ClientHello is
	// incomplete.
	ErrNeedMore = errors.New("ClientHello is not complete")
	// ErrShed ends a connection without a ClientHello to admit another one.
	ErrShed = errors.New("closed to make room: it had not sent a ClientHello yet")
)

// End describes the end of a connection.
type End string

// The ends, as the access log shows them.
const (
	EndDone    End = "done"    // both directions ended
	EndCut     End = "cut"     // a connection failed: a reset, or a dead peer
	EndStopped End = "stopped" // the gateway ended it when its drain time was over
)

// Handler decides which connections are served. Its methods are called by
// several goroutines and must not block.
type Handler interface {
	// Accept admits a connection to listener number n of Config.Listeners. It
	// returns nil if the connection is refused: the engine closes it. Before it
	// admits a connection it calls reserve, which counts the connection towards
	// the limit and returns false when the limit is reached.
	Accept(n int, remote netip.AddrPort, now time.Time, reserve func() bool) Session
	// RefuseNoFiles records a connection that was closed because the process
	// cannot open more files.
	RefuseNoFiles(n int, remote netip.AddrPort)
}

// Session is the gateway's part of one client connection. An engine calls its
// methods from one goroutine at a time, except Count.
type Session interface {
	// Receive examines the argument in, which contains all bytes that the
	// client has sent. It returns ErrNeedMore until the ClientHello is
	// complete, and then the upstreams of its route. Any other error refuses
	// the client. The result may share memory with in.
	Receive(in []byte, now time.Time) (Request, error)
	// HoldHello accounts for n bytes of memory that hold the ClientHello. The
	// number n replaces the number of the last call. An error refuses the
	// client.
	HoldHello(n int) error
	// NewUpstreams returns the addresses of the route if it changed since the
	// last call, or since Receive.
	NewUpstreams() []string
	// Connected records the upstream and the number of failed attempts before
	// it.
	Connected(addr string, failures int, now time.Time)
	// Count adds bytes that arrived: up at the upstream, down at the client.
	Count(up, down int)
	// Fail records why the connection is not forwarded and how many attempts
	// failed. It returns a TLS alert for the client, or nil.
	Fail(why error, failures int) (alert []byte)
	// Close ends the session. No method may be called afterwards.
	Close(end End)
}

// Request describes the upstream of a connection.
type Request struct {
	// Addrs are the addresses of the upstream. Start is as in upstream.Dialer.
	Addrs []string
	Start int
	// Hello contains the first bytes for the upstream. It is valid until the
	// next call.
	Hello []byte
	// Race sends the ClientHello to several addresses: the first TLS record
	// that comes back decides. Otherwise an open connection decides.
	Race bool
	// ProxyHeader sends a PROXY header with Source before the ClientHello.
	ProxyHeader bool
	Source      netip.AddrPort
}

// Listener is a socket on which an engine accepts connections.
type Listener struct {
	net.Listener
	Name string // for logs
}

// Config of an Engine. All fields are required.
type Config struct {
	Listeners    []Listener // Serve closes them
	Handler      Handler
	Dialer       *upstream.Dialer
	HelloTimeout time.Duration
	// ShedAfter is the age at which a connection without a ClientHello may be
	// closed to admit another one.
	ShedAfter time.Duration
	MaxConns  func() int
	MaxPipes  int // for all workers together
	Reserve   *sockets.ReserveFD
	// Drain starts the time for which connections stay open after the context
	// of Serve has ended. over is closed at the end of that time.
	Drain  func() (over <-chan struct{}, stop func())
	Logger *slog.Logger
}
