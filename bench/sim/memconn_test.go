// SPDX-License-Identifier: MPL-2.0

package sim

import (
	"io"
	"net"
	"os"
	"sync"
	"sync/atomic"
	"time"
)

// conn is one end of an in-memory connection. A write never blocks: there is no
// window and no rate limit, only delay.
type conn struct {
	in, out       *half
	host          *host // counts the traffic; nil: not counted
	local, remote net.Addr
	closed        atomic.Bool
}

// half is one direction of a connection. Data arrives in order, delay after it
// was pushed. It arrives at the reader, or at another half if a gateway has
// joined the two.
type half struct {
	delay time.Duration

	mu            sync.Mutex
	wake          sync.Cond // signaled when buf, ended, closed, deadline or joined changes
	inFlight      []segment // pushed and not yet arrived, oldest first
	timer         *time.Timer
	buf           [][]byte // arrived and not yet read
	ended         bool     // no more data follows buf
	cut           *atomic.Bool
	closed        bool // by the reader
	joined        *half
	deadline      time.Time
	deadlineTimer *time.Timer // runs at deadline, while a reader waits
}

// segment is the data of one Write; nil b is the end of the data.
type segment struct {
	at time.Time
	b  []byte
}

func newHalf(delay time.Duration, cut *atomic.Bool) *half {
	h := &half{delay: delay, cut: cut}
	h.wake.L = &h.mu
	return h
}

// push sends b and takes ownership of it. nil is the end of the data.
func (h *half) push(b []byte) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.cut != nil && h.cut.Load() {
		return // silently lost
	}
	if h.delay == 0 {
		h.arriveLocked(b)
		return
	}
	h.inFlight = append(h.inFlight, segment{time.Now().Add(h.delay), b})
	if len(h.inFlight) > 1 {
		return
	}
	if h.timer == nil {
		h.timer = time.AfterFunc(h.delay, h.deliver)
	} else {
		h.timer.Reset(h.delay)
	}
}

// deliver makes the segments that are due arrive.
func (h *half) deliver() {
	h.mu.Lock()
	defer h.mu.Unlock()
	now := time.Now()
	for len(h.inFlight) > 0 && !h.inFlight[0].at.After(now) {
		b := h.inFlight[0].b
		h.inFlight[0].b = nil
		h.inFlight = h.inFlight[1:]
		if h.cut == nil || !h.cut.Load() {
			h.arriveLocked(b)
		}
	}
	if len(h.inFlight) == 0 {
		h.inFlight = nil
		return
	}
	h.timer.Reset(h.inFlight[0].at.Sub(now))
}

func (h *half) arriveLocked(b []byte) {
	switch {
	case h.joined != nil:
		h.joined.push(b)
		return
	case b == nil:
		h.ended = true
	case h.ended || h.closed:
		return
	default:
		h.buf = append(h.buf, b)
	}
	h.wake.Broadcast()
}

// join forwards to next all data that has arrived or will arrive at h.
func (h *half) join(next *half) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, b := range h.buf {
		next.push(b)
	}
	h.buf, h.joined = nil, next
	if h.ended {
		next.push(nil)
	}
}

func (h *half) read(p []byte) (int, error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for {
		switch {
		case h.closed:
			return 0, net.ErrClosed
		case !h.deadline.IsZero() && !time.Now().Before(h.deadline):
			return 0, os.ErrDeadlineExceeded
		case len(h.buf) > 0:
			n := copy(p, h.buf[0])
			if h.buf[0] = h.buf[0][n:]; len(h.buf[0]) == 0 {
				h.buf[0] = nil
				h.buf = h.buf[1:]
			}
			if len(h.buf) == 0 {
				h.buf = nil
			}
			return n, nil
		case h.ended:
			return 0, io.EOF
		case len(p) == 0:
			return 0, nil
		}
		h.setDeadlineTimerLocked()
		h.wake.Wait()
	}
}

// setDeadlineTimerLocked schedules a wakeup of the reader at its deadline.
func (h *half) setDeadlineTimerLocked() {
	switch {
	case h.deadline.IsZero():
		if h.deadlineTimer != nil {
			h.deadlineTimer.Stop()
		}
	case h.deadlineTimer == nil:
		h.deadlineTimer = time.AfterFunc(time.Until(h.deadline), func() {
			h.mu.Lock()
			defer h.mu.Unlock()
			h.wake.Broadcast()
		})
	default:
		h.deadlineTimer.Reset(time.Until(h.deadline))
	}
}

func (h *half) setDeadline(t time.Time) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.deadline = t
	h.wake.Broadcast()
}

// closeRead ends reading. Data that arrives later is discarded.
func (h *half) closeRead() {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.closed, h.buf = true, nil
	if h.deadlineTimer != nil {
		h.deadlineTimer.Stop()
	}
	h.wake.Broadcast()
}

// newConns returns both ends of a connection. All data is lost once cut is
// true; nil never cuts.
func newConns(from, to net.Addr, delay time.Duration, cut *atomic.Bool) (dialed, accepted *conn) {
	forward, backward := newHalf(delay, cut), newHalf(delay, cut)
	return &conn{in: backward, out: forward, local: from, remote: to},
		&conn{in: forward, out: backward, local: to, remote: from}
}

func (c *conn) Read(p []byte) (int, error) {
	n, err := c.in.read(p)
	if err != nil && err != io.EOF {
		err = &net.OpError{Op: "read", Net: "tcp", Addr: c.remote, Err: err}
	}
	if c.host != nil {
		c.host.received.Add(int64(n))
	}
	return n, err
}

func (c *conn) Write(p []byte) (int, error) {
	if c.closed.Load() {
		return 0, &net.OpError{Op: "write", Net: "tcp", Addr: c.remote, Err: net.ErrClosed}
	}
	if len(p) > 0 {
		c.out.push(append(make([]byte, 0, len(p)), p...))
	}
	if c.host != nil {
		c.host.sent.Add(int64(len(p)))
	}
	return len(p), nil
}

// Close closes both directions. The peer reads what was written, and then the
// end of the data.
func (c *conn) Close() error {
	if c.closed.Swap(true) {
		return nil
	}
	c.out.push(nil)
	c.in.closeRead()
	if c.host != nil {
		c.host.open.Add(-1)
	}
	return nil
}

func (c *conn) LocalAddr() net.Addr  { return c.local }
func (c *conn) RemoteAddr() net.Addr { return c.remote }

func (c *conn) SetDeadline(t time.Time) error    { return c.SetReadDeadline(t) }
func (c *conn) SetWriteDeadline(time.Time) error { return nil } // a write never blocks
func (c *conn) SetReadDeadline(t time.Time) error {
	c.in.setDeadline(t)
	return nil
}
