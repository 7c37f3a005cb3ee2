// SPDX-License-Identifier: MPL-2.0

package reactor

import (
	"fmt"
	"net/netip"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/wanfed/wanfed/gateway/internal/sockets"
)

const (
	// maxAccept bounds the connections that a worker accepts in one round from
	// one listener. The bound leaves connections for other workers.
	maxAccept = 32
	// stopRounds bounds the accept rounds of a worker that stops. Under load
	// another connection is always pending.
	stopRounds = 32
)

// acceptor accepts the connections of one listener for one worker.
type acceptor struct {
	Listener
	fd    int32 // a duplicate of the socket of the listener
	mptcp bool  // accepted sockets do not inherit TCP_NODELAY
	// batch is the number of connections to accept in the next round: about as
	// many as in the last round. An accept without a pending connection costs
	// as much as an accept with one.
	batch int
	// paused is true until the time resume, because the process is out of a
	// resource.
	paused bool
	resume time.Duration // since the start of the engine
	pause  time.Duration // the last pause; 0: the last accept succeeded
}

func (w *worker) openAcceptor(l Listener) error {
	fd, err := dup(l.Listener.(syscall.Conn))
	if err != nil {
		return fmt.Errorf("listener %s (%s): %w", l.Addr(), l.Name, err)
	}
	protocol, _ := unix.GetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_PROTOCOL)
	a := &acceptor{Listener: l, fd: fd, mptcp: protocol == unix.IPPROTO_MPTCP, batch: 1}
	sysSetNoDelay(fd) // accepted sockets inherit the options
	sysDelayAck(fd)
	w.acceptors = append(w.acceptors, a)
	return a.open(w)
}

func (a *acceptor) open(w *worker) error {
	a.paused = false
	// Another process that shares the socket may have made it blocking.
	if err := unix.SetNonblock(int(a.fd), true); err != nil {
		return err
	}
	return w.register(a.fd, a, unix.EPOLLIN|unix.EPOLLEXCLUSIVE)
}

// close closes the descriptor of the acceptor.
func (a *acceptor) close(w *worker) {
	w.unregister(a.fd)
	sysClose(a.fd)
}

// stop ends the acceptor. The kernel wakes one waiter per connection, and other
// workers and processes may wait at the same socket. The acceptor therefore
// first leaves the epoll set, and then accepts the connections for which the
// kernel may have woken it.
func (a *acceptor) stop(w *worker) {
	if !a.paused {
		w.control(unix.EPOLL_CTL_DEL, a.fd, 0)
	}
	for range stopRounds {
		if !a.accept(w) {
			break
		}
	}
	a.close(w)
}

func (a *acceptor) event(w *worker, _ uint32) { a.accept(w) }

// accept accepts a batch of pending connections. It returns false when no
// connection is pending. Otherwise another event follows.
func (a *acceptor) accept(w *worker) (more bool) {
	for n := range a.batch {
		fd, remote, errno := sysAccept(a.fd)
		switch {
		case errno == 0:
			a.pause = 0
			if w.engine.Reserve.Taken() { // fd uses the descriptor that another worker freed in refusePending
				sysClose(fd)
				w.engine.Reserve.Open()
				a.Handler.RefuseNoFiles(remote)
				continue
			}
			if a.mptcp {
				sysSetNoDelay(fd)
			}
			a.admit(w, fd, remote)
		case errno == unix.EAGAIN:
			a.batch = max(n, 1)
			return false
		case errno == unix.EINTR || errno == unix.ECONNABORTED || sockets.OutOfFiles(errno) && a.refusePending(w):
		default:
			a.fail(w, errno)
			return false
		}
	}
	a.batch = min(2*a.batch, maxAccept)
	return true
}

// admit starts a connection and reads it at once, because most clients have
// already sent their ClientHello.
func (a *acceptor) admit(w *worker, fd int32, remote netip.AddrPort) {
	session := a.Handler.Accept(remote, w.time(), w.tryReserve)
	if session == nil {
		sysClose(fd)
		return
	}
	c := &conn{session: session, since: w.now}
	c.client, c.upstream = socket{conn: c, fd: fd, readable: true}, socket{conn: c, fd: -1}
	w.conns++
	w.hellos.push(c)
	if err := w.register(fd, &c.client, inEvents); err != nil {
		c.close(w, EndCut)
		return
	}
	if c.readHello(w); c.state == receiving {
		session.Wait(func(why error) { w.send(func(w *worker) { c.displace(w, why) }) })
	}
}

// refusePending accepts and closes one pending connection with the reserve
// file. It returns false if no connection is pending, or if the reserve is in
// use.
func (a *acceptor) refusePending(w *worker) (done bool) {
	w.engine.Reserve.Use(func() {
		if fd, remote, errno := sysAccept(a.fd); errno == 0 {
			done = true
			sysClose(fd)
			a.Handler.RefuseNoFiles(remote)
		}
	})
	return done
}

// fail pauses the acceptor after an error, or ends the engine if the error is
// permanent.
func (a *acceptor) fail(w *worker, errno unix.Errno) {
	if !sockets.IsTemporary(errno) {
		select {
		case w.engine.failed <- fmt.Errorf("accept (listener %s): %w", a.Name, errno):
		default:
		}
	}
	a.pause = min(max(2*a.pause, sockets.MinAcceptPause), sockets.MaxAcceptPause)
	w.engine.Logger.Warn("cannot accept connections", "listener", a.Name, "err", errno, "duration", a.pause)
	a.resume, a.paused = w.now+a.pause, true
	w.control(unix.EPOLL_CTL_DEL, a.fd, 0)
	w.unregister(a.fd)
}

// reopenAcceptors resumes acceptors whose pause is over. It returns the time at
// which the next pause is over, or never.
func (w *worker) reopenAcceptors() time.Duration {
	next := never
	for _, a := range w.acceptors {
		if a.paused && a.resume <= w.now && a.open(w) != nil {
			a.resume, a.paused = w.now+sockets.MaxAcceptPause, true
		}
		if a.paused {
			next = min(next, a.resume)
		}
	}
	return next
}

// reserveConn counts one more connection of the engine. At the limit it sheds
// the oldest connection without a complete ClientHello: it closes that
// connection, or sends a message to the worker that owns it. If no such
// connection is older than ShedAfter, reserveConn returns false.
func (w *worker) reserveConn() bool {
	e := w.engine
	if e.open.Add(1) <= int64(e.MaxConns()) {
		return true
	}
	oldest, owner := int64(w.now-e.ShedAfter)+1, (*worker)(nil)
	for _, other := range e.workers {
		if at := other.hellos.oldest.Load(); at > 0 && at <= oldest {
			oldest, owner = at, other
		}
	}
	switch owner {
	case nil:
		e.open.Add(-1)
		return false
	case w:
		w.shed()
	default:
		owner.send((*worker).shed)
	}
	return true
}

// shed closes the oldest connection without a ClientHello, if it is older than
// ShedAfter.
func (w *worker) shed() {
	if c := w.hellos.first; c != nil && w.now-c.since >= w.engine.ShedAfter {
		c.fail(w, ErrShed)
	}
}
