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

// ErrNeedMore is returned by Session.Receive while the ClientHello is
// incomplete.
var ErrNeedMore = errors.New("ClientHello is not complete")

// ErrShed is passed to Session.Fail when a connection without a ClientHello is
// closed to admit another connection.
var ErrShed = errors.New("closed at the limit of connections before its ClientHello was complete")

// End describes the end of a connection.
type End string

// The ends, as the access log shows them.
const (
	EndDone    End = "done"    // both directions ended
	EndCut     End = "cut"     // a reset or a dead peer
	EndStopped End = "stopped" // the drain time of the gateway was over
)

// Handler decides which connections of one listener are served. Its methods are
// called by several goroutines and must not block.
type Handler interface {
	// Accept returns the session of a new connection, or nil to refuse the
	// connection, which the engine then closes. Before Accept admits a
	// connection it calls reserve. reserve counts the connection towards the
	// limit, and returns false at the limit.
	Accept(remote netip.AddrPort, now time.Time, reserve func() bool) Session
	// RefuseNoFiles records a connection that was closed because the process
	// cannot open more files.
	RefuseNoFiles(remote netip.AddrPort)
}

// Session is the gateway's part of one client connection. An engine calls the
// methods from one goroutine at a time, except Count.
type Session interface {
	// Receive parses all bytes that the client has sent. It returns ErrNeedMore
	// until the ClientHello is complete, and then the upstreams of its route.
	// Any other error refuses the client. The Request may share memory with in.
	Receive(in []byte, now time.Time) (Request, error)
	// Wait reports that the ClientHello is not complete yet. The engine calls it
	// at most once. The session may later call close, at most once and from any
	// goroutine. close does not wait for the connection. If the ClientHello is
	// still incomplete, the connection ends with Fail(why).
	Wait(close func(why error))
	// HoldHello reports that n bytes of memory hold the ClientHello now. The
	// number replaces that of the previous call. An error refuses the client,
	// because the memory for ClientHellos is limited.
	HoldHello(n int) error
	// NewUpstreams returns the addresses of the route if they changed since the
	// last call, or since Receive.
	NewUpstreams() []string
	// Connected records the address of the upstream and the number of attempts
	// that failed before.
	Connected(addr string, failures int, now time.Time)
	// Count adds bytes that arrived: up at the upstream, down at the client.
	Count(up, down int)
	// Fail records why the connection is not forwarded and how many attempts
	// failed. It returns a TLS alert for the client, or nil. The error is
	// ErrShed, io.EOF if the client closed before its ClientHello was complete,
	// os.ErrDeadlineExceeded if the ClientHello was late, or an error of a
	// socket, of a Session method or of package upstream.
	Fail(why error, failures int) (alert []byte)
	// Close ends the session. No method may be called afterwards.
	Close(end End)
}

// Request describes the upstream of a connection.
type Request struct {
	// Addrs are the addresses of the upstream. Start is the parameter start of
	// upstream.Dialer.DialAny.
	Addrs []string
	Start int
	// Hello contains the first bytes for the upstream. It is valid until the
	// next call of a Session method.
	Hello []byte
	// Race means that each address that is tried receives the ClientHello, and
	// the first TLS record in response wins. Otherwise the first open
	// connection wins.
	Race bool
	// ProxyHeader sends a PROXY header with Source before the ClientHello, to
	// the addresses in ProxyTo, or to all if ProxyTo is nil.
	ProxyHeader bool
	ProxyTo     []string
	Source      netip.AddrPort
}

// Listener is a socket on which an engine accepts connections.
type Listener struct {
	net.Listener
	Name    string // for logs
	Handler Handler
}

// Config configures an Engine. All fields are required.
type Config struct {
	Listeners    []Listener // Serve closes them
	Dialer       *upstream.Dialer
	HelloTimeout time.Duration
	// ShedAfter is the age from which a connection without a ClientHello may be
	// closed to admit another connection.
	ShedAfter time.Duration
	MaxConns  func() int         // of all workers together
	MaxPipes  int                // of all workers together
	Reserve   *sockets.ReserveFD // open; used when the process is out of files
	// Drain is called after the context of Serve has ended. It calls wait,
	// which waits for the open connections. When the drain time is over, it
	// calls stop, which ends the connections.
	Drain  func(wait, stop func())
	Logger *slog.Logger
}
