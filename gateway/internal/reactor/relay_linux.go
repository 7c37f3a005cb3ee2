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
	// bulkReads is the number of consecutive reads that must fill the buffer of
	// bulkSize bytes before a direction gets a pipe. The direction keeps the
	// pipe only if a splice moves bulkSize bytes.
	bulkReads = 2
	bulkSize  = 16 << 10
)

// relay moves bytes after an event of s: the bytes that come from s, and the
// bytes that s can accept again.
func (c *conn) relay(w *worker, s *socket) {
	other := &c.client
	if s == other {
		other = &c.upstream
	}
	if s.readable || s.holds() {
		s.flow(w, other)
	}
	if c.state == relaying && s.readable && !other.writable {
		s.mute(w)
	}
	if c.state == relaying && s.writable && (other.readable || other.holds()) {
		other.flow(w, s)
	}
}

// holds reports whether bytes were read from s that the other end has not
// taken.
func (s *socket) holds() bool { return s.held != nil || s.pipe != nil && s.pipe.held > 0 }

// flow moves bytes from s to dst until there are none, dst accepts no more, or
// maxMove is reached.
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
			return // the remaining data stays in the socket
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

// write sends b to dst with the flags of sysSend. It keeps a copy of the bytes
// that dst does not accept. It returns false if the connection has ended.
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

// mute stops events for data from s, because the other end does not accept the
// data.
func (s *socket) mute(w *worker) {
	if !s.muted {
		s.muted = true
		s.updateEvents(w)
	}
}

// drained records that all data from s was read. An event follows when more
// data arrives.
func (s *socket) drained(w *worker) {
	s.readable = false
	if s.muted {
		s.muted = false
		s.updateEvents(w) // there is an event even if more has come by now
	}
}

// blocked records that s accepts no bytes. An event follows when s accepts
// bytes again.
func (s *socket) blocked(w *worker) {
	s.writable = false
	if !s.watched {
		s.updateEvents(w) // there is an event even if s is writable by now
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

// copy moves bytes through the worker's buffer. It returns false if there are
// none, or if the connection has ended.
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
			flags = unix.MSG_MORE // the end comes next and shares the segment
		}
	default:
		if s.full++; s.full >= bulkReads {
			s.bulk, s.full = !s.noSplice, 0
		}
	}
	return n, s.write(w, dst, room[:n], flags)
}

// splice moves bytes to the pipe. flush takes them from there. It returns false
// if there are none, or if the connection has ended.
func (s *socket) splice(w *worker, dst *socket) (int, bool) {
	if s.pipe == nil {
		if s.pipe = w.pipes.get(); s.pipe == nil {
			s.bulk = false // no pipe is left
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

// finish passes the end of data on. The connection ends when both directions
// have ended.
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
// had ended before, the end is normal. A peer that closes at once after its
// last data responds with a reset to data that still arrives, usually a TLS
// close_notify.
func (s *socket) fail(w *worker, dst *socket) {
	if dst.ended && !dst.holds() {
		s.conn.close(w, EndDone)
		return
	}
	s.conn.abort(w)
}

const (
	// pipeSize is the capacity of a pipe in bytes, if the system allows it. One
	// splice moves up to pipeSize bytes.
	pipeSize = 1 << 20
	// maxSparePipes bounds the empty pipes that a worker keeps.
	maxSparePipes = 16
)

// pipe holds bytes in the kernel on their way from one socket to another.
type pipe struct {
	r, w int32
	held int // bytes in it
}

// pipes are the pipes of a worker.
type pipes struct {
	spare []*pipe
	open  int // spare ones included
	max   int
}

// get returns an empty pipe, or nil if there is none.
func (p *pipes) get() *pipe {
	if n := len(p.spare); n > 0 {
		x := p.spare[n-1]
		p.spare = p.spare[:n-1]
		return x
	}
	if p.open >= p.max {
		return nil
	}
	var fds [2]int
	if unix.Pipe2(fds[:], unix.O_NONBLOCK|unix.O_CLOEXEC) != nil {
		return nil
	}
	p.open++
	unix.FcntlInt(uintptr(fds[0]), unix.F_SETPIPE_SZ, pipeSize) // on an error it has the usual size
	return &pipe{r: int32(fds[0]), w: int32(fds[1])}
}

// put returns a pipe. One that holds bytes is closed.
func (p *pipes) put(x *pipe) {
	if x.held > 0 || len(p.spare) >= maxSparePipes {
		x.close()
		p.open--
		return
	}
	p.spare = append(p.spare, x)
}

func (p *pipes) close() {
	for _, x := range p.spare {
		x.close()
	}
	p.spare = nil
}

func (x *pipe) close() {
	sysClose(x.r)
	sysClose(x.w)
}
