// SPDX-License-Identifier: MPL-2.0

package reactor

import (
	"io"
	"os"
	"slices"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"github.com/wanfed/wanfed/gateway/internal/upstream"
)

// state is the progress of a connection. It only increases.
type state uint8

const (
	receiving  state = iota // the ClientHello is incomplete
	connecting              // an upstream is being selected; the client's data stays in its socket
	relaying                // bytes move both ways
	closed                  // both sockets are closed
)

// conn is a proxied connection: a client and, once it is selected, its
// upstream. It belongs to one worker.
type conn struct {
	client, upstream socket
	session          Session
	since            time.Duration // start of receiving, or of relaying, since the start of the engine
	hello            []byte        // the first part of the ClientHello, while receiving
	dial             *dial         // nil: not connecting
	address          *upstream.Address
	prev, next       *conn // in worker.hellos while receiving, or in worker.young after that
	state            state
}

// socket is one end of a conn. Bytes that are read from it go to the other end.
type socket struct {
	conn     *conn
	pipe     *pipe  // nil: bytes that are read go through worker.buf
	held     []byte // bytes that were read and that the other end has not accepted
	fd       int32  // -1: no socket
	readable bool   // data may be available to read
	writable bool   // the socket may accept bytes
	hungUp   bool   // the peer has ended its direction
	broken   bool   // after the remaining data, a read returns an error
	ended    bool   // a read has returned the end of data
	shut     bool   // the direction to the peer was shut down
	watched  bool   // epoll reports when the socket is writable
	muted    bool   // epoll does not report when the socket is readable
	bulk     bool   // many bytes are read: they go through a pipe
	noSplice bool   // the kernel cannot splice from this socket
	queued   bool   // in worker.ready
	full     uint8  // consecutive reads that filled the buffer
}

// event implements eventHandler.
func (s *socket) event(w *worker, events uint32) {
	const failed, ended = unix.EPOLLHUP | unix.EPOLLERR, unix.EPOLLHUP | unix.EPOLLERR | unix.EPOLLRDHUP
	s.readable = s.readable || events&(unix.EPOLLIN|ended) != 0
	s.writable = s.writable || events&(unix.EPOLLOUT|failed) != 0
	s.hungUp = s.hungUp || events&ended != 0
	s.broken = s.broken || events&unix.EPOLLERR != 0
	switch c := s.conn; c.state {
	case receiving:
		c.readHello(w)
	case connecting:
		if events&failed != 0 {
			c.fail(w, upstream.ErrClientGone)
		}
	case relaying:
		c.relay(w, s)
	}
}

// readHello reads until the ClientHello is complete or no more data is
// available.
func (c *conn) readHello(w *worker) {
	for c.client.readable {
		in := c.hello
		room := w.buf[:MaxHello-len(in)]
		n, errno := sysRecv(c.client.fd, room)
		switch {
		case errno == unix.EAGAIN:
			c.client.readable = false
			return
		case errno == unix.EINTR:
			continue
		case errno != 0:
			c.fail(w, errno)
			return
		case n == 0:
			c.fail(w, io.EOF)
			return
		case n < len(room) && !c.client.hungUp:
			c.client.readable = false // an event follows when more data arrives
		}
		if in == nil {
			in = room[:n]
		} else {
			in = append(in, room[:n]...)
		}
		w.updateNow()
		req, err := c.session.Receive(in, w.time())
		if err == nil {
			w.hellos.remove(c)
			c.hello, c.state = nil, connecting
			w.dial(c, req) // may overwrite worker.buf, to which in and req may refer
			return
		}
		if err == ErrNeedMore {
			if c.hello == nil {
				in = slices.Clone(in) // the next read overwrites worker.buf
			}
			c.hello = in
			err = c.session.HoldHello(cap(in))
		}
		if err != nil {
			c.fail(w, err)
			return
		}
	}
}

// displace refuses the client because of why, unless its ClientHello is
// complete.
func (c *conn) displace(w *worker, why error) {
	if c.state == receiving {
		c.fail(w, why)
	}
}

// fail refuses the client and closes c.
func (c *conn) fail(w *worker, why error) {
	failures := 0
	if c.dial != nil {
		failures = c.dial.Failures()
	}
	if alert := c.session.Fail(why, failures); alert != nil {
		sysSend(c.client.fd, alert, 0)
	}
	c.close(w, EndDone)
}

// close releases everything that belongs to c.
func (c *conn) close(w *worker, end End) {
	if c.state == closed {
		return
	}
	if c.dial != nil {
		c.dial.release(w)
	}
	switch c.state {
	case receiving:
		w.hellos.remove(c)
	case relaying:
		w.young.remove(c)
	}
	for _, s := range []*socket{&c.client, &c.upstream} {
		if s.fd >= 0 {
			w.unregister(s.fd)
			sysClose(s.fd)
			s.fd = -1
		}
		if s.pipe != nil {
			w.pipes.put(s.pipe)
			s.pipe = nil
		}
	}
	c.state = closed
	w.engine.Dialer.Closed(c.address)
	w.engine.open.Add(-1)
	w.conns--
	c.session.Close(end)
}

// queue is a list of connections, ordered by conn.since. A connection is in at
// most one queue.
type queue struct {
	first, last *conn
	// oldest is conn.since of the first connection, in nanoseconds plus one; 0:
	// the queue is empty. Other workers read it.
	oldest atomic.Int64
}

func (q *queue) push(c *conn) {
	c.prev, c.next = q.last, nil
	if q.last != nil {
		q.last.next = c
	} else {
		q.setFirst(c)
	}
	q.last = c
}

// remove removes c if it is in q.
func (q *queue) remove(c *conn) {
	if c.prev == nil && q.first != c {
		return
	}
	if c.next != nil {
		c.next.prev = c.prev
	} else {
		q.last = c.prev
	}
	if c.prev != nil {
		c.prev.next = c.next
	} else {
		q.setFirst(c.next)
	}
	c.prev, c.next = nil, nil
}

func (q *queue) setFirst(c *conn) {
	q.first = c
	if c != nil {
		q.oldest.Store(int64(c.since) + 1)
	} else {
		q.oldest.Store(0)
	}
}

// expireHellos closes connections whose ClientHello is late. It returns the
// time at which the next ClientHello is late, or never.
func (w *worker) expireHellos() time.Duration {
	for c := w.hellos.first; c != nil; c = w.hellos.first {
		if due := c.since + w.engine.HelloTimeout; due > w.now {
			return due
		}
		c.fail(w, os.ErrDeadlineExceeded)
	}
	return never
}

// keepaliveAfter is the age at which the sockets of a connection get keepalive.
// Most connections end earlier and save these system calls.
const keepaliveAfter = time.Second

// startKeepalives sets keepalive for connections of the age keepaliveAfter. It
// returns the time at which the next connection reaches this age, or never.
func (w *worker) startKeepalives() time.Duration {
	for c := w.young.first; c != nil; c = w.young.first {
		if due := c.since + keepaliveAfter; due > w.now {
			return due
		}
		w.young.remove(c)
		sysSetKeepalive(c.upstream.fd)
		sysSetKeepalive(c.client.fd)
	}
	return never
}
