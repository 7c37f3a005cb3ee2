// SPDX-License-Identifier: MPL-2.0

package wanfed

import (
	"context"
	"crypto/tls"
	"encoding/binary"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"sync/atomic"
	"time"

	"github.com/hashicorp/yamux"
)

const (
	// streamWindow bounds the bytes in flight on one stream: 400 Mbit/s at a
	// round trip of 80 ms.
	streamWindow = 4 << 20
	// maxStreams bounds the streams of an accepted session. Further streams are
	// refused with a status.
	maxStreams = 256
	// maxOpenStreams also counts refused streams that the peer has not closed
	// yet. Beyond it the session is closed, because the peer ignores refusals.
	maxOpenStreams = 4 * maxStreams
	// maxPings bounds the unanswered pings of a peer. A keepalive sends one
	// ping.
	maxPings = 64
	// maxRecord is the largest payload of a TLS record, in bytes (RFC 8446
	// section 5.1).
	maxRecord = 16 << 10
)

var (
	errTooManyPings   = fmt.Errorf("peer sent more than %d pings without reading the answers", maxPings)
	errTooManyStreams = fmt.Errorf("peer has more than %d streams open", maxOpenStreams)
)

// sessionFault returns the fault of the peer that ended a session. It returns
// "" if the peer did not cause the end.
func sessionFault(err error) refusal {
	if errors.Is(err, errTooManyPings) || errors.Is(err, errTooManyStreams) {
		return faultFlood
	}
	for _, e := range []error{
		yamux.ErrInvalidVersion, yamux.ErrInvalidMsgType, yamux.ErrUnexpectedFlag,
		yamux.ErrRecvWindowExceeded, yamux.ErrDuplicateStream,
	} {
		if errors.Is(err, e) {
			return faultFrame
		}
	}
	return ""
}

// yamuxConfig is the yamux configuration of both sides of a session.
func (l limits) yamuxConfig(log *slog.Logger) *yamux.Config {
	c := yamux.DefaultConfig()
	c.AcceptBacklog = maxStreams
	c.KeepAliveInterval = l.keepaliveInterval
	c.ConnectionWriteTimeout = l.keepaliveTimeout
	c.MaxStreamWindowSize = streamWindow
	c.StreamOpenTimeout = l.openTimeout
	c.LogOutput = nil
	c.Logger = yamuxLog{log}
	return c
}

// yamuxConn is the connection below a session. A peer that does not read cannot
// block a Write or Close indefinitely. It also cannot make this end queue an
// unbounded number of ping responses.
type yamuxConn struct {
	*tls.Conn
	timeout time.Duration // limit of one Write
	joiner  headerJoiner
	pings   pingGuard
}

func (c *yamuxConn) Read(b []byte) (int, error) {
	n, err := c.Conn.Read(b)
	if flood := c.pings.received(b[:n]); flood != nil {
		return n, flood
	}
	return n, err
}

func (c *yamuxConn) Write(b []byte) (int, error) {
	if len(c.joiner.header) == 0 { // otherwise b is a body
		c.pings.sent(b)
	}
	return c.joiner.write(b, func(b []byte) (int, error) {
		c.SetWriteDeadline(time.Now().Add(c.timeout))
		return c.Conn.Write(b)
	})
}

func (c *yamuxConn) Close() error {
	closeConn(c.Conn)
	return nil
}

const (
	yamuxHeaderLen = 12 // version, type, flags, stream, length
	yamuxTypeData  = 0  // the only type with a body
	yamuxTypePing  = 2
	pingRequest    = 1 // flag of a ping
	pingResponse   = 2 // flag of a ping

	maxJoinBuffer = 4 << 10 // kept between two frames, in bytes
)

// headerJoiner writes the header and the body of a yamux frame in one TLS
// record. yamux writes them separately, which would cost a further system call,
// and a wakeup on each server of the path. Only the sending goroutine of yamux
// uses a headerJoiner.
type headerJoiner struct {
	header []byte // a header that waits for its body, which is the next write
}

// write passes b to w. If b is the header of a frame with a body, write stores
// it and passes header and body to w at the next call.
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

// bodyFollows reports whether b is a header with a body, and both fit into one
// record.
func bodyFollows(b []byte) bool {
	if len(b) != yamuxHeaderLen || b[1] != yamuxTypeData {
		return false
	}
	n := binary.BigEndian.Uint32(b[8:])
	return n > 0 && n <= maxRecord-yamuxHeaderLen
}

// pingGuard counts the unanswered pings of a peer. yamux responds to each ping
// in a goroutine, which ends when the response is sent. Without the guard, a
// peer that sends pings without reading could start any number of goroutines.
type pingGuard struct {
	head       [yamuxHeaderLen]byte
	n          int    // bytes of head that have arrived
	body       uint32 // bytes of the current body that are missing
	unanswered atomic.Int32
}

// received parses the bytes that arrived, in pieces of any size. It is called
// by one goroutine.
func (g *pingGuard) received(b []byte) error {
	for len(b) > 0 {
		if g.body > 0 {
			n := uint32(min(uint64(g.body), uint64(len(b))))
			g.body, b = g.body-n, b[n:]
			continue
		}
		n := copy(g.head[g.n:], b)
		g.n, b = g.n+n, b[n:]
		if g.n < yamuxHeaderLen {
			return nil
		}
		g.n = 0
		switch {
		case g.head[1] == yamuxTypeData:
			g.body = binary.BigEndian.Uint32(g.head[8:])
		case isPing(g.head[:], pingRequest) && g.unanswered.Add(1) > maxPings:
			return errTooManyPings
		}
	}
	return nil
}

// sent counts a ping response. header is the header of a frame that is sent.
func (g *pingGuard) sent(header []byte) {
	if isPing(header, pingResponse) {
		g.unanswered.Add(-1)
	}
}

func isPing(header []byte, flag uint16) bool {
	return len(header) == yamuxHeaderLen && header[1] == yamuxTypePing &&
		binary.BigEndian.Uint16(header[2:])&flag != 0
}

// yamuxLog logs messages of yamux at level Debug. Each concerns one connection.
type yamuxLog struct{ log *slog.Logger }

func (l yamuxLog) Printf(format string, v ...any) { l.debug(fmt.Sprintf(format, v...)) }
func (l yamuxLog) Print(v ...any)                 { l.debug(fmt.Sprint(v...)) }
func (l yamuxLog) Println(v ...any)               { l.debug(fmt.Sprintln(v...)) }

func (l yamuxLog) debug(text string) {
	l.log.Log(context.Background(), slog.LevelDebug, "stream session", "text", strings.TrimSpace(text))
}
