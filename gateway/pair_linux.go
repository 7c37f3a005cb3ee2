// SPDX-License-Identifier: MPL-2.0

package gateway

import (
	"net/netip"
	"time"

	"golang.org/x/sys/unix"
)

// state is how far a pair has come. It only goes forward.
type state uint8

const (
	stateHello  state = iota // the ClientHello has not come yet, or not all of it
	stateSearch              // an upstream is being chosen; what else the client sends stays in its socket
	stateRelay               // bytes go both ways
	stateClosed              // both sockets are closed
)

// pair is a client connection and, once it is chosen, the connection to its upstream. It belongs to one worker.
type pair struct {
	client, upstream socket
	side             *Listener
	origin
	began      time.Duration // since the worker's start
	state      state
	peek       *peek         // in stateHello, when a part of the hello has come
	search     *search       // in stateSearch
	prev, next *pair         // its place in stateHello among the waiting, in stateRelay for a while among the young
	relayed    time.Duration // when stateRelay began, since the worker's start
	watched    bool          // the client's socket finds a dead peer
	trip       *trip         // nil: not noted
	known      *known        // the upstream, in stateRelay
}

// socket is one end of a pair: bytes that come from it go to the other end.
type socket struct {
	pair     *pair
	pipe     *pipe  // in use while much flows
	held     []byte // read here, but the other end has not taken it yet
	fd       int32  // -1: there is none
	readable bool   // there may be something to read
	writable bool   // it may be able to take something
	hungUp   bool   // the peer has ended its direction: there is an end to be read, behind what is left
	broken   bool   // what is there to be read is, in the end, a failure
	ended    bool   // the end was read
	shut     bool   // our direction is ended
	watched  bool   // an event comes when it is writable again
	muted    bool   // no event comes when there is something to read
	bulk     bool   // much flows from here
	plain    bool   // it cannot be spliced
	queued   bool   // among the worker's ready
	full     uint8  // reads in a row that filled the buffer
}

// event notes what an event says, and goes on.
func (s *socket) event(w *worker, what uint32) {
	if what&(unix.EPOLLIN|unix.EPOLLRDHUP|unix.EPOLLHUP|unix.EPOLLERR) != 0 {
		s.readable = true
	}
	if what&(unix.EPOLLRDHUP|unix.EPOLLHUP|unix.EPOLLERR) != 0 {
		s.hungUp = true
	}
	if what&unix.EPOLLERR != 0 {
		s.broken = true
	}
	if what&(unix.EPOLLOUT|unix.EPOLLHUP|unix.EPOLLERR) != 0 {
		s.writable = true
	}
	p := s.pair
	switch p.state {
	case stateHello:
		p.readHello(w)
	case stateSearch:
		if what&(unix.EPOLLHUP|unix.EPOLLERR) != 0 {
			p.search.gone(w)
		}
	case stateRelay:
		p.relay(w, s)
	}
}

// admit takes a new connection in, if it may come and there is room for it. Else it returns nil.
func (w *worker) admit(side *Listener, fd int32, remote netip.AddrPort, watched bool) *pair {
	side.accepted.Add(1)
	trip := w.engine.access.begin(side, remote, w.now)
	from := origin{remote: remote}
	reason, ok := from.enter(side)
	if ok && !w.makeRoom() {
		from.leave(side)
		reason, ok = ReasonLimit, false
	}
	if !ok {
		trip.endsBy(reason.String())
		trip.over(w.now)
		w.engine.refusals.count(side, remote.String(), &refusal{reason: reason})
		sysClose(fd)
		return nil
	}
	p := w.newPair()
	p.side, p.origin, p.trip, p.began = side, from, trip, w.now.Sub(w.start)
	p.client.fd, p.watched = fd, watched
	side.active.Add(1)
	w.pairs++
	w.waiting.push(p)
	if err := w.register(fd, &p.client, inEvents); err != nil {
		w.waiting.remove(p)
		p.close(w)
		return nil
	}
	return p
}

// refuse counts why p is not forwarded, tells the client, and closes.
func (p *pair) refuse(w *worker, r *refusal) {
	p.trip.endsBy(r.reason.String())
	w.engine.refusals.count(p.side, p.remote.String(), r)
	if a := r.alert(); a != nil {
		sysSend(p.client.fd, a, 0)
	}
	p.close(w)
}

// abort closes both connections so that both peers learn that data is missing.
func (p *pair) abort(w *worker) {
	p.trip.endsBy(endCut)
	for _, s := range []*socket{&p.client, &p.upstream} {
		if s.fd >= 0 {
			sysReset(s.fd)
		}
	}
	p.close(w)
}

// close closes all that belongs to p. Nobody may use it afterwards.
func (p *pair) close(w *worker) {
	if p.search != nil {
		p.search.release(w)
	}
	p.dropPeek(w)
	switch p.state {
	case stateHello:
		w.waiting.remove(p)
	case stateRelay:
		w.young.remove(p)
	}
	for _, s := range []*socket{&p.client, &p.upstream} {
		if s.fd >= 0 {
			w.forget(s.fd)
			sysClose(s.fd)
		}
		if s.pipe != nil {
			w.pipes.put(s.pipe)
		}
	}
	p.side.active.Add(^uint64(0))
	p.leave(p.side)
	w.engine.dialer.evidence.closed(p.known)
	p.trip.over(w.now)
	w.engine.open.Add(-1)
	w.pairs--
	w.freePair(p)
}
