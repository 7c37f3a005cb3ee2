// SPDX-License-Identifier: MPL-2.0

package wanfed

import (
	"errors"
	"io"
	"net"
	"os"
	"sync"
	"sync/atomic"
	"time"

	"github.com/hashicorp/yamux"
)

// streamChunk bounds one yamux frame, in bytes. A keepalive of the session
// waits for at most one frame.
const streamChunk = 64 << 10

// streamConn is a yamux stream whose Close, deadlines and errors behave like
// the methods of a TCP connection of package net. Read reports the end of the
// session as an error and not as io.EOF.
type streamConn struct {
	st      *yamux.Stream
	peer    nameAddr // RemoteAddr
	closed  atomic.Bool
	session *session      // nil if the peer opened the stream
	unread  *unreadStream // nil if this server opened the stream

	statusMu      sync.Mutex
	statusPending bool // the status is not read yet; guarded by statusMu

	writeMu sync.Mutex // serializes Write

	mu       sync.Mutex
	ended    bool      // Read returned io.EOF
	deadline time.Time // of writes
}

func newStreamConn(st *yamux.Stream, peer string) *streamConn {
	return &streamConn{st: st, peer: nameAddr(peer)}
}

func (c *streamConn) Read(b []byte) (int, error) {
	if c.closed.Load() {
		return 0, c.opError("read", net.ErrClosed)
	}
	if err := c.awaitStatus(); err != nil {
		return 0, err
	}
	n, err := c.st.Read(b)
	if c.unread != nil {
		c.unread.read(c.st, n)
	}
	if err == nil {
		return n, nil
	}
	if err == io.EOF && c.isPeerEOF() {
		return n, io.EOF
	}
	return n, c.opError("read", err)
}

// awaitStatus reads the status if it is pending.
func (c *streamConn) awaitStatus() error {
	c.statusMu.Lock()
	defer c.statusMu.Unlock()
	if !c.statusPending {
		return nil
	}
	var refused *refusedError
	err := c.readStatus()
	if err == nil || errors.As(err, &refused) {
		c.statusPending = false // after a timeout the status is still pending
	}
	return err
}

// readStatus reads the status, the response to the header of the stream.
func (c *streamConn) readStatus() error {
	var status [1]byte
	if _, err := io.ReadFull(c.st, status[:]); err != nil {
		return c.opError("read", err)
	}
	if streamStatus(status[0]) != streamOK {
		return &refusedError{streamStatus(status[0]), string(c.peer)}
	}
	return nil
}

// isPeerEOF reports whether io.EOF of yamux means that the peer ended the
// stream. yamux also returns io.EOF when the session has ended.
func (c *streamConn) isPeerEOF() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.ended = c.ended || !c.st.Session().IsClosed()
	return c.ended
}

func (c *streamConn) Write(b []byte) (n int, err error) {
	c.writeMu.Lock()
	defer c.writeMu.Unlock()
	for {
		if err := c.mayWrite(); err != nil {
			return n, c.opError("write", err)
		}
		m, err := c.st.Write(b[n:min(len(b), n+streamChunk)])
		n += m
		if err != nil {
			return n, c.opError("write", err)
		}
		if n == len(b) {
			return n, nil
		}
	}
}

// mayWrite returns an error after Close and after the write deadline. yamux
// checks both only when a write must wait.
func (c *streamConn) mayWrite() error {
	if c.closed.Load() {
		return net.ErrClosed
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if !c.deadline.IsZero() && !time.Now().Before(c.deadline) {
		return os.ErrDeadlineExceeded
	}
	return nil
}

// CloseWrite ends the sending direction. Read works for 10 s more.
func (c *streamConn) CloseWrite() error { return c.st.Close() }

// Close ends both directions and unblocks Read and Write.
func (c *streamConn) Close() error {
	if !c.closed.Swap(true) {
		_ = c.st.Close() // yamux closes only the sending direction
		_ = c.st.SetReadDeadline(time.Unix(1, 0))
		if c.unread != nil {
			c.unread.close(c.st)
		}
	}
	return nil
}

func (c *streamConn) opError(op string, err error) error {
	switch {
	case c.closed.Load(), errors.Is(err, yamux.ErrStreamClosed):
		err = net.ErrClosed
	case errors.Is(err, yamux.ErrTimeout), errors.Is(err, yamux.ErrConnectionWriteTimeout):
		err = os.ErrDeadlineExceeded
	case err == io.EOF:
		err = io.ErrUnexpectedEOF
	}
	return &net.OpError{Op: op, Net: "tcp", Source: c.LocalAddr(), Addr: c.peer, Err: err}
}

func (c *streamConn) LocalAddr() net.Addr  { return c.st.LocalAddr() }
func (c *streamConn) RemoteAddr() net.Addr { return c.peer }

func (c *streamConn) SetDeadline(t time.Time) error {
	return errors.Join(c.SetReadDeadline(t), c.SetWriteDeadline(t))
}

func (c *streamConn) SetReadDeadline(t time.Time) error {
	if c.closed.Load() {
		return c.opError("set", net.ErrClosed)
	}
	return c.st.SetReadDeadline(t)
}

func (c *streamConn) SetWriteDeadline(t time.Time) error {
	if c.closed.Load() {
		return c.opError("set", net.ErrClosed)
	}
	c.mu.Lock()
	c.deadline = t
	c.mu.Unlock()
	return c.st.SetWriteDeadline(t)
}
