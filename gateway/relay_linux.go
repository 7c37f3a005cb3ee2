// SPDX-License-Identifier: MPL-2.0

package gateway

import (
	"slices"

	"golang.org/x/sys/unix"
)

const (
	// turn is how many bytes one direction may move before others get their turn.
	turn = 2 << 20
	// bulkReads is how many reads in a row must fill the buffer before a direction gets a pipe; bulkSize is the buffer for
	// it, and what a splice must move at least for the direction to keep the pipe.
	bulkReads = 2
	bulkSize  = 16 << 10
)

// relay moves what can be moved after an event on s: bytes from it, and bytes that it can take again.
func (p *pair) relay(w *worker, s *socket) {
	other := &p.client
	if s == other {
		other = &p.upstream
	}
	if s.readable || s.holds() {
		s.flow(w, other)
	}
	if p.state == stateRelay && s.readable && !other.writable {
		s.mute(w)
	}
	if p.state == stateRelay && s.writable && (other.readable || other.holds()) {
		other.flow(w, s)
	}
}

// holds says whether bytes were taken from s that the other end has not.
func (s *socket) holds() bool { return s.held != nil || s.pipe != nil && s.pipe.held > 0 }

// flow moves bytes from s to dst until there are none, dst takes no more, or its turn is over.
func (s *socket) flow(w *worker, dst *socket) {
	for moved := 0; s.drain(w, dst); {
		if s.pipe != nil && !s.bulk {
			s.returnPipe(w)
		}
		switch {
		case s.ended:
			s.finish(w, dst)
			return
		case !s.readable || !dst.writable:
			return // what is there stays in the socket
		case moved >= turn:
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

// drain hands over what is held. It returns false if dst does not take all of it, or the pair has come to its end.
func (s *socket) drain(w *worker, dst *socket) bool {
	if s.held != nil {
		if !dst.writable {
			return false
		}
		b := s.held
		s.held = nil
		if !s.give(w, dst, b, 0) || s.held != nil {
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
			s.broke(w, dst)
			return false
		}
		s.pipe.held -= n
		s.count(n)
	}
	return true
}

// give sends b to dst, as sysSend does, and keeps a copy of what it does not take. It returns false if the pair has come to its end.
func (s *socket) give(w *worker, dst *socket, b []byte, flags int) bool {
	n, errno := sysSend(dst.fd, b, flags)
	if errno != 0 && errno != unix.EAGAIN && errno != unix.EINTR {
		s.broke(w, dst)
		return false
	}
	s.count(n)
	if n < len(b) {
		s.held = slices.Clone(b[n:])
		dst.blocked(w)
	}
	return true
}

// count counts bytes that have arrived at the other end.
func (s *socket) count(n int) {
	up, down := s.pair.trip.tallies(s.pair.side)
	if s == &s.pair.client {
		up.Add(uint64(n))
	} else {
		down.Add(uint64(n))
	}
}

// mute has data that comes from s bring no more events: there is some that the other end does not take yet.
func (s *socket) mute(w *worker) {
	if !s.muted {
		s.muted = true
		s.listen(w)
	}
}

// dry notes that all that came from s was read. An event says when there is more.
func (s *socket) dry(w *worker) {
	s.readable = false
	if s.muted {
		s.muted = false
		s.listen(w) // brings the event even if more has come meanwhile
	}
}

// listen tells the kernel which events s wants.
func (s *socket) listen(w *worker) {
	events := uint32(inEvents)
	if s.muted {
		events &^= unix.EPOLLIN
	}
	if s.watched = !s.writable; s.watched {
		events |= unix.EPOLLOUT
	}
	w.change(s.fd, events)
}

// blocked notes that s takes no more for now. An event says when it does.
func (s *socket) blocked(w *worker) {
	s.writable = false
	if !s.watched {
		s.listen(w) // brings the event even if s has become writable meanwhile
	}
}

// copy moves bytes by the worker's buffer. It returns false if there are none, or the pair has come to its end.
func (s *socket) copy(w *worker, dst *socket) (int, bool) {
	room, flags := w.buf[:bulkSize], 0
	n, errno := sysRecv(s.fd, room)
	switch {
	case errno == unix.EAGAIN:
		s.full = 0
		s.dry(w)
		return 0, false
	case errno == unix.EINTR:
		return 0, true
	case errno != 0:
		s.broke(w, dst)
		return 0, false
	case n == 0:
		s.ended = true
		return 0, true
	case n < len(room):
		s.full = 0
		switch {
		case !s.hungUp:
			s.dry(w) // it is empty; an event says when more has come
		case !s.broken:
			flags = unix.MSG_MORE // the end comes next, and goes along
		}
	default:
		if s.full++; s.full >= bulkReads {
			s.bulk, s.full = !s.plain, 0
		}
	}
	return n, s.give(w, dst, room[:n], flags)
}

// splice has the kernel move bytes to the pipe, from where drain takes them. It returns false if there are none, or the pair has
// come to its end.
func (s *socket) splice(w *worker, dst *socket) (int, bool) {
	if s.pipe == nil {
		if s.pipe = w.pipes.get(); s.pipe == nil {
			s.bulk = false // the system has no more
			return 0, true
		}
	}
	n, errno := sysSplice(s.fd, s.pipe.w, pipeSize)
	switch {
	case errno == unix.EAGAIN:
		s.dry(w)
		s.returnPipe(w)
		return 0, false
	case errno == unix.EINTR:
		return 0, true
	case errno == unix.EINVAL: // no splice with this kind of socket
		s.bulk, s.plain = false, true
		s.returnPipe(w)
		return 0, true
	case errno != 0:
		s.broke(w, dst)
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

// finish passes the end of data on. When both directions have ended, so has the pair.
func (s *socket) finish(w *worker, dst *socket) {
	if s.pipe != nil {
		s.returnPipe(w)
	}
	if dst.shut {
		return
	}
	dst.shut = true
	if s.shut { // the other direction has ended too
		s.pair.close(w)
		return
	}
	if sysShutdownWrite(dst.fd) != 0 {
		s.broke(w, dst)
	}
}

// broke ends the pair because the direction from s to dst failed. When dst had said its end before, it is an end like others: who
// closes at once after the last word, as most do, answers what comes then, a TLS close_notify mostly, with a reset.
func (s *socket) broke(w *worker, dst *socket) {
	if dst.ended && dst.held == nil && (dst.pipe == nil || dst.pipe.held == 0) {
		s.pair.close(w)
		return
	}
	s.pair.abort(w)
}
