// SPDX-License-Identifier: MPL-2.0

package reactor

import (
	"slices"

	"golang.org/x/sys/unix"
)

const (
	// maxMove bounds the bytes that one direction moves before other
	// connections are served.
	maxMove = 2 << 20
	// A direction gets a pipe after bulkReads consecutive reads of bulkSize
	// bytes. It returns the pipe when a splice moves fewer than bulkSize bytes.
	bulkReads = 2
	bulkSize  = 16 << 10
)

// relay continues both directions after an event of s: the event may mean that
// s has data to read, or that s accepts data again.
func (c *conn) relay(w *worker, s *socket) {
	other := &c.client
	if s == other {
		other = &c.upstream
	}
	if s.readable || s.holds() {
		s.flow(w, other)
	}
	if c.state == relaying && s.readable && !other.writable && !s.muted {
		s.muted = true // an event could not be used before other accepts data
		s.updateEvents(w)
	}
	if c.state == relaying && s.writable && (other.readable || other.holds()) {
		other.flow(w, s)
	}
}

// holds reports whether bytes were read from s that the other end has not
// accepted.
func (s *socket) holds() bool { return s.held != nil || s.pipe != nil && s.pipe.held > 0 }

// flow moves bytes from s to dst until s has no data, dst accepts no more data,
// or maxMove is reached.
func (s *socket) flow(w *worker, dst *socket) {
	for moved := 0; s.flush(w, dst); {
		if s.pipe != nil && !s.bulk {
			s.returnPipe(w)
		}
		switch {
		case s.ended:
			s.finish(w, dst)
			return
		case !s.readable || !dst.writable:
			return // the remaining data stays in the socket of s
		case moved >= maxMove:
			w.queue(s)
			return
		}
		n, ok := 0, false
		if s.bulk {
			n, ok = s.splice(w, dst)
		} else {
			n, ok = s.copy(w, dst)
		}
		if !ok {
			return
		}
		moved += n
	}
}

// flush writes the bytes that s holds. It returns false if dst does not accept
// all of them, or if the connection has ended.
func (s *socket) flush(w *worker, dst *socket) bool {
	if s.held != nil {
		if !dst.writable {
			return false
		}
		b := s.held
		s.held = nil
		if !s.write(w, dst, b, 0) || s.held != nil {
			return false
		}
	}
	for s.pipe != nil && s.pipe.held > 0 {
		if !dst.writable {
			return false
		}
		n, errno := sysSplice(s.pipe.r, dst.fd, s.pipe.held)
		if errno == unix.EAGAIN {
			dst.blocked(w)
			return false
		}
		if errno == unix.EINTR {
			continue
		}
		if errno != 0 || n == 0 {
			s.fail(w, dst)
			return false
		}
		s.pipe.held -= n
		s.count(n)
	}
	return true
}

// write sends b, which was read from s, to dst with the flags of sysSend. It
// keeps a copy of the bytes that dst does not accept. It returns false if the
// connection has ended.
func (s *socket) write(w *worker, dst *socket, b []byte, flags int) bool {
	n, errno := sysSend(dst.fd, b, flags)
	if errno != 0 && errno != unix.EAGAIN && errno != unix.EINTR {
		s.fail(w, dst)
		return false
	}
	s.count(n)
	if n < len(b) {
		s.held = slices.Clone(b[n:])
		dst.blocked(w)
	}
	return true
}

// count counts n bytes from s that the other end has accepted.
func (s *socket) count(n int) {
	if s == &s.conn.client {
		s.conn.session.Count(n, 0)
	} else {
		s.conn.session.Count(0, n)
	}
}

// drained records that all data from s was read. An event follows when more
// data arrives.
func (s *socket) drained(w *worker) {
	s.readable = false
	if s.muted {
		s.muted = false
		s.updateEvents(w) // epoll reports an event even if more data has already arrived
	}
}

// blocked records that s accepts no bytes. An event follows when s accepts
// bytes again.
func (s *socket) blocked(w *worker) {
	s.writable = false
	if !s.watched {
		s.updateEvents(w) // epoll reports an event even if s is already writable again
	}
}

// updateEvents registers the events that s needs.
func (s *socket) updateEvents(w *worker) {
	events := uint32(inEvents)
	if s.muted {
		events &^= unix.EPOLLIN
	}
	if s.watched = !s.writable; s.watched {
		events |= unix.EPOLLOUT
	}
	w.control(unix.EPOLL_CTL_MOD, s.fd, events)
}

// copy moves bytes from s to dst through worker.buf. It returns the number of
// bytes. The result is false if s has no data, or if the connection has ended.
func (s *socket) copy(w *worker, dst *socket) (int, bool) {
	room, flags := w.buf[:bulkSize], 0
	n, errno := sysRecv(s.fd, room)
	switch {
	case errno == unix.EAGAIN:
		s.full = 0
		s.drained(w)
		return 0, false
	case errno == unix.EINTR:
		return 0, true
	case errno != 0:
		s.fail(w, dst)
		return 0, false
	case n == 0:
		s.ended = true
		return 0, true
	case n < len(room):
		s.full = 0
		switch {
		case !s.hungUp:
			s.drained(w)
		case !s.broken:
			flags = unix.MSG_MORE // the end of data follows in the same segment
		}
	default:
		if s.full++; s.full >= bulkReads {
			s.bulk, s.full = !s.noSplice, 0
		}
	}
	return n, s.write(w, dst, room[:n], flags)
}

// splice moves bytes from s to the pipe, from which flush moves them to dst.
// The results are those of copy.
func (s *socket) splice(w *worker, dst *socket) (int, bool) {
	if s.pipe == nil {
		if s.pipe = w.pipes.get(); s.pipe == nil {
			s.bulk = false // copy instead
			return 0, true
		}
	}
	n, errno := sysSplice(s.fd, s.pipe.w, pipeSize)
	switch {
	case errno == unix.EAGAIN:
		s.drained(w)
		s.returnPipe(w)
		return 0, false
	case errno == unix.EINTR:
		return 0, true
	case errno == unix.EINVAL:
		s.bulk, s.noSplice = false, true
		s.returnPipe(w)
		return 0, true
	case errno != 0:
		s.fail(w, dst)
		return 0, false
	case n == 0:
		s.ended = true
		s.returnPipe(w)
		return 0, true
	}
	s.pipe.held = n
	s.bulk = n >= bulkSize
	return n, true
}

func (s *socket) returnPipe(w *worker) {
	w.pipes.put(s.pipe)
	s.pipe, s.full = nil, 0
}

// finish passes the end of data from s to dst. The connection ends when both
// directions have ended.
func (s *socket) finish(w *worker, dst *socket) {
	if s.pipe != nil {
		s.returnPipe(w)
	}
	if dst.shut {
		return
	}
	dst.shut = true
	if s.shut {
		s.conn.close(w, EndDone)
		return
	}
	if sysShutdownWrite(dst.fd) != 0 {
		s.fail(w, dst)
	}
}

// fail ends the connection because the direction from s to dst failed. If dst
// has ended before, the end is normal: a peer that closes right after its last
// data answers later data, usually a TLS close_notify, with a reset. Otherwise
// both sockets are closed with a reset, from which the peers can detect missing
// data.
func (s *socket) fail(w *worker, dst *socket) {
	if dst.ended && !dst.holds() {
		s.conn.close(w, EndDone)
		return
	}
	sysLingerReset(s.fd)
	sysLingerReset(dst.fd)
	s.conn.close(w, EndCut)
}

const (
	// pipeSize is the capacity of a pipe in bytes, if the system allows so
	// much. One splice moves up to pipeSize bytes.
	pipeSize = 1 << 20
	// maxSparePipes bounds the empty pipes that a worker keeps.
	maxSparePipes = 16
)

// pipe holds bytes in the kernel on their way from one socket to another.
type pipe struct {
	r, w int32
	held int // bytes
}

// pipes are the pipes of a worker.
type pipes struct {
	spare []*pipe
	open  int // with the spare pipes
	max   int // bounds open
}

// get returns an empty pipe, or nil if no pipe is available.
func (p *pipes) get() *pipe {
	if n := len(p.spare); n > 0 {
		spare := p.spare[n-1]
		p.spare = p.spare[:n-1]
		return spare
	}
	if p.open >= p.max {
		return nil
	}
	var fds [2]int
	if unix.Pipe2(fds[:], unix.O_NONBLOCK|unix.O_CLOEXEC) != nil {
		return nil
	}
	p.open++
	unix.FcntlInt(uintptr(fds[0]), unix.F_SETPIPE_SZ, pipeSize) // on an error the pipe keeps the default size
	return &pipe{r: int32(fds[0]), w: int32(fds[1])}
}

// put keeps a pipe for get, or closes it if it holds bytes.
func (p *pipes) put(used *pipe) {
	if used.held > 0 || len(p.spare) >= maxSparePipes {
		used.close()
		p.open--
		return
	}
	p.spare = append(p.spare, used)
}

func (p *pipes) close() {
	for _, spare := range p.spare {
		spare.close()
	}
	p.spare = nil
}

func (p *pipe) close() {
	sysClose(p.r)
	sysClose(p.w)
}
