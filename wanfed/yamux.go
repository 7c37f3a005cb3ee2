// SPDX-License-Identifier: MPL-2.0

package wanfed

import (
	"crypto/tls"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"sync/atomic"
	"time"

	"github.com/hashicorp/yamux"
)

const (
	// streamWindow bounds the bytes in flight on one stream: 400 Mbit/s at a
	// round trip of 80 ms.
	streamWindow = 4 << 20
	// maxStreams bounds the streams that an accepted session serves. Each
	// further stream is refused with a status, and the session stays open.
	maxStreams = 256
	// maxOpenStreams bounds the streams including the refused streams that the
	// peer has not closed yet. A session with more streams is closed, because
	// its peer ignores refusals.
	maxOpenStreams = 4 * maxStreams
	// maxPings bounds the pings of a peer without a response. A keepalive sends
	// one ping.
	maxPings = 64
	// maxRecord is the largest payload of a TLS record, in bytes (RFC 8446
	// section 5.1).
	maxRecord = 16 << 10
)

var (
	errTooManyPings   = fmt.Errorf("peer sent more than %d pings without reading the responses", maxPings)
	errTooManyStreams = fmt.Errorf("peer has more than %d streams open", maxOpenStreams)
)

// sessionFault returns the fault of the peer that ended a session with err. It
// returns nil if the peer did not cause the end.
func sessionFault(err error) *refusal {
	switch {
	case errors.Is(err, errTooManyPings), errors.Is(err, errTooManyStreams):
		return faultFlood
	case errors.Is(err, errUnread):
		return faultBacklog
	}
	for _, e := range []error{
		yamux.ErrInvalidVersion, yamux.ErrInvalidMsgType, yamux.ErrUnexpectedFlag,
		yamux.ErrRecvWindowExceeded, yamux.ErrDuplicateStream,
	} {
		if errors.Is(err, e) {
			return faultFrame
		}
	}
	return nil
}

// acceptedKeepalive multiplies the keepalive interval at the accepting end of a
// session. The pings of the dialing end, which opens the streams, detect a dead
// path: see session.watch. The pings of the accepting end only release the memory
// of its streams.
const acceptedKeepalive = 4

// yamuxConfig returns the yamux configuration of a session without keepalive.
// yamux logs at level Debug, because each of its messages concerns one
// connection.
func (l limits) yamuxConfig(log *slog.Logger) *yamux.Config {
	c := yamux.DefaultConfig()
	c.AcceptBacklog = maxStreams
	c.EnableKeepAlive = false
	c.ConnectionWriteTimeout = l.keepaliveTimeout
	c.MaxStreamWindowSize = streamWindow
	// yamux keeps a closed stream, and the data in it that nothing reads, until the
	// peer closes it too, at most for this time, also after the end of the session.
	c.StreamCloseTimeout = l.streamCloseTimeout
	c.StreamOpenTimeout = l.openTimeout
	c.LogOutput = nil
	c.Logger = slog.NewLogLogger(log.Handler(), slog.LevelDebug)
	return c
}

// yamuxConn is the TLS connection that carries a session. It bounds the
// duration of Write and Close, the number of ping responses that yamux queues for
// a peer that does not read, and the unread bytes of an accepted session.
type yamuxConn struct {
	*tls.Conn
	timeout time.Duration  // of one Write
	unread  *unreadSession // counts the frames of an accepted session; nil: dialed
	joiner  headerJoiner
	frames  frameReader
	pings   pingGuard
}

func (c *yamuxConn) Read(b []byte) (int, error) { return c.frames.read(c.Conn, b, c.received) }

// received checks a frame before yamux reads it. It returns false if the body is
// to be discarded. A fault of the peer ends the session.
func (c *yamuxConn) received(h yamuxHead) (keep bool, err error) {
	err = c.pings.received(h)
	switch {
	case c.unread == nil:
		return true, err
	case err != nil:
		c.unread.fail(err)
		return false, err
	}
	return c.unread.frame(h)
}

func (c *yamuxConn) Write(b []byte) (int, error) {
	if len(c.joiner.header) == 0 { // otherwise b is a body
		c.pings.sent(b)
		if c.unread != nil && len(b) == yamuxHeaderLen && yamuxHead(b).has(yamuxRST) {
			c.unread.reset(yamuxHead(b).stream())
		}
	}
	return c.joiner.write(b, func(b []byte) (int, error) {
		c.SetWriteDeadline(time.Now().Add(c.timeout))
		return c.Conn.Write(b)
	})
}

func (c *yamuxConn) Close() error {
	if c.unread != nil {
		c.unread.stop()
	}
	closeConn(c.Conn)
	return nil
}

const (
	yamuxHeaderLen  = 12 // version, type, flags, stream, length
	yamuxTypeData   = 0  // the only type with a body
	yamuxTypeWindow = 1
	yamuxTypePing   = 2
	pingRequest     = 1 // flag of a ping
	pingResponse    = 2 // flag of a ping
	yamuxSYN        = 1 // flag of a frame of a stream, as the next two
	yamuxFIN        = 4
	yamuxRST        = 8
	maxJoinBuffer   = 4 << 10 // capacity of headerJoiner.header between two frames, in bytes
)

// yamuxHead is the header of a frame.
type yamuxHead [yamuxHeaderLen]byte

func (h yamuxHead) stream() uint32 { return binary.BigEndian.Uint32(h[4:]) }

// has reports whether h is of a stream and has the flag.
func (h yamuxHead) has(flag uint16) bool {
	return h[1] <= yamuxTypeWindow && binary.BigEndian.Uint16(h[2:])&flag != 0
}

// body returns the number of bytes that follow h.
func (h yamuxHead) body() uint32 {
	if h[1] != yamuxTypeData {
		return 0
	}
	return binary.BigEndian.Uint32(h[8:])
}

// headerJoiner writes the header and the body of a yamux frame in one TLS
// record. yamux writes header and body separately, which costs a second system
// call, and a second wakeup on each server of the path. Only the sending
// goroutine of yamux uses a headerJoiner.
type headerJoiner struct {
	header []byte // of a frame whose body is the next write; empty: none
}

// write passes b to w. If b is the header of a frame with a body, write stores
// b. The next call then passes the header and the body to w.
func (f *headerJoiner) write(b []byte, w func([]byte) (int, error)) (int, error) {
	if len(f.header) == 0 {
		if bodyFollows(b) {
			f.header = append(f.header, b...)
			return len(b), nil
		}
		return w(b)
	}
	all := append(f.header, b...)
	if f.header = all[:0]; cap(all) > maxJoinBuffer {
		f.header = nil
	}
	n, err := w(all)
	return max(0, n-yamuxHeaderLen), err
}

// bodyFollows reports whether b is the header of a frame that has a body and
// fits into one TLS record.
func bodyFollows(b []byte) bool {
	if len(b) != yamuxHeaderLen || b[1] != yamuxTypeData {
		return false
	}
	n := binary.BigEndian.Uint32(b[8:])
	return n > 0 && n <= maxRecord-yamuxHeaderLen
}

// frameReader passes the frames of a peer to yamux. A read returns one header, or
// bytes of one body. yamux locks a stream while it reads a body, so check, which
// may block, is called while no stream is locked.
type frameReader struct {
	head yamuxHead
	rest []byte // of head, for the next read
	body uint32 // missing bytes of the current body
	skip uint32 // bytes to discard before the next header
}

// read reads from r into b. It calls check with each header. If check returns
// false, yamux receives the header without its body.
func (f *frameReader) read(r io.Reader, b []byte, check func(yamuxHead) (keep bool, err error)) (int, error) {
	if f.body > 0 {
		n, err := r.Read(b[:min(uint64(len(b)), uint64(f.body))])
		f.body -= uint32(n)
		return n, err
	}
	if len(f.rest) == 0 {
		if _, err := io.CopyN(io.Discard, r, int64(f.skip)); err != nil {
			return 0, err
		}
		if _, err := io.ReadFull(r, f.head[:]); err != nil {
			return 0, err
		}
		keep, err := check(f.head)
		if err != nil {
			return 0, err
		}
		f.rest, f.skip = f.head[:], 0
		if n := f.head.body(); n > 0 && !keep {
			f.skip = n
			binary.BigEndian.PutUint32(f.head[8:], 0)
		}
	}
	n := copy(b, f.rest)
	if f.rest = f.rest[n:]; len(f.rest) == 0 {
		f.body = f.head.body()
	}
	return n, nil
}

// pingGuard counts the pings of a peer that have no response yet. yamux
// responds to each ping in a goroutine, which ends when the response is sent. A
// peer that sends pings without reading could otherwise start any number of
// goroutines.
type pingGuard struct{ unanswered atomic.Int32 }

// received counts a ping. It returns errTooManyPings if the peer exceeds
// maxPings.
func (g *pingGuard) received(h yamuxHead) error {
	if isPing(h[:], pingRequest) && g.unanswered.Add(1) > maxPings {
		return errTooManyPings
	}
	return nil
}

// sent counts a response to a ping. header is the header of a frame to the
// peer.
func (g *pingGuard) sent(header []byte) {
	if isPing(header, pingResponse) {
		g.unanswered.Add(-1)
	}
}

func isPing(header []byte, flag uint16) bool {
	return len(header) == yamuxHeaderLen && header[1] == yamuxTypePing &&
		binary.BigEndian.Uint16(header[2:])&flag != 0
}
