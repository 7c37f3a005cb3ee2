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

// streamChunk bounds one yamux frame, in bytes, so that the keepalives of a session wait behind no more than that.
const streamChunk = 64 << 10

// streamConn is a yamux stream as a net.Conn whose Close, deadlines and errors are those of package net. In addition it
// has CloseWrite, and it does not report the end of its session as the end of the stream.
type streamConn struct {
	st     *yamux.Stream
	peer   nameAddr // RemoteAddr
	closec chan struct{}
	once   sync.Once
	s      *session // of a stream that was opened here; else nil

	unanswered atomic.Bool // the acceptor's status comes before what Read gives
	amu        sync.Mutex  // one Read at a time takes it

	wmu sync.Mutex // one Write at a time

	mu       sync.Mutex
	ended    bool // the peer's end was read
	deadline time.Time
}

func newStreamConn(st *yamux.Stream, peer string) *streamConn {
	return &streamConn{st: st, peer: nameAddr(peer), closec: make(chan struct{})}
}

func (c *streamConn) Read(b []byte) (int, error) {
	if c.isClosed() {
		return 0, c.opError("read", net.ErrClosed)
	}
	if c.unanswered.Load() {
		if err := c.takeStatus(); err != nil {
			return 0, err
		}
	}
	n, err := c.st.Read(b)
	if err == nil {
		return n, nil
	}
	if err == io.EOF && c.sawEnd() {
		return n, io.EOF
	}
	return n, c.opError("read", err)
}

// takeStatus takes the status that was not waited for, unless another Read was faster.
func (c *streamConn) takeStatus() error {
	c.amu.Lock()
	defer c.amu.Unlock()
	if !c.unanswered.Load() {
		return nil
	}
	var refused *refusedError
	err := c.readStatus()
	if err == nil || errors.As(err, &refused) {
		c.unanswered.Store(false) // else it was no answer: a deadline has passed, say
	}
	return err
}

// readStatus reads the answer to the stream's header.
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

// sawEnd says whether an EOF from yamux is the peer's: it also gives EOF when the session ends.
func (c *streamConn) sawEnd() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.ended = c.ended || !c.st.Session().IsClosed()
	return c.ended
}

func (c *streamConn) Write(b []byte) (n int, err error) {
	c.wmu.Lock()
	defer c.wmu.Unlock()
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

// mayWrite checks what yamux looks at only when it has to wait.
func (c *streamConn) mayWrite() error {
	if c.isClosed() {
		return net.ErrClosed
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if !c.deadline.IsZero() && !time.Now().Before(c.deadline) {
		return os.ErrDeadlineExceeded
	}
	return nil
}

// CloseWrite tells the peer that no more comes; reading goes on.
func (c *streamConn) CloseWrite() error { return c.st.Close() }

// Close ends both directions and wakes who waits.
func (c *streamConn) Close() error {
	c.once.Do(func() {
		close(c.closec)
		_ = c.st.Close() // yamux closes only its sending half
		_ = c.st.SetReadDeadline(time.Unix(1, 0))
	})
	return nil
}

func (c *streamConn) isClosed() bool {
	select {
	case <-c.closec:
		return true
	default:
		return false
	}
}

func (c *streamConn) opError(op string, err error) error {
	switch {
	case c.isClosed(), errors.Is(err, yamux.ErrStreamClosed):
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
	if c.isClosed() {
		return c.opError("set", net.ErrClosed)
	}
	return c.st.SetReadDeadline(t)
}

func (c *streamConn) SetWriteDeadline(t time.Time) error {
	if c.isClosed() {
		return c.opError("set", net.ErrClosed)
	}
	c.mu.Lock()
	c.deadline = t
	c.mu.Unlock()
	return c.st.SetWriteDeadline(t)
}
