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
	// maxAccept bounds the connections that a worker accepts at once from one
	// listener. The bound leaves connections for other workers.
	maxAccept = 32
	// stopRounds bounds the accepts of a worker that stops. Under load another
	// connection is always pending.
	stopRounds = 32
	// readEvery applies if the last connection that was read at once had sent
	// nothing. After readEvery connections, another connection is read at once.
	readEvery = 16
)

// acceptor accepts the connections of one listener for one worker.
type acceptor struct {
	fd       int32
	listener int // its number
	name     string

	// Accepted sockets have the options of the listener. MPTCP listeners do not
	// pass all of them on.
	checked, inherits bool
	// batch is the number of connections to accept next. It is about the number
	// accepted last time, because an accept without a pending connection costs
	// as much as an accept with one.
	batch int
	// readNow is set if the last connection had sent data when it was accepted.
	// The next connection is then read at once. skipped counts the connections
	// that were not read at once.
	readNow bool
	skipped int
	// paused means that the acceptor does not accept until resume: the process
	// is out of a resource. pause is the last pause; 0: the last accept
	// succeeded.
	paused bool
	pause  time.Duration
	resume time.Duration // since the engine's start
}

func (w *worker) openAcceptor(n int, l Listener) error {
	fd, err := dup(l.Listener.(syscall.Conn))
	if err != nil {
		return fmt.Errorf("listener %s (%s): %w", l.Addr(), l.Name, err)
	}
	a := &acceptor{fd: fd, listener: n, name: l.Name, batch: 1}
	// Accepted sockets inherit these options.
	sysSetsockopt(fd, unix.IPPROTO_TCP, unix.TCP_NODELAY, 1)
	sysDelayAck(fd)
	sysSetKeepalive(fd)
	w.acceptors = append(w.acceptors, a)
	return a.open(w)
}

func (a *acceptor) open(w *worker) error {
	a.paused = false
	// Another process that shares the socket may have changed this.
	if err := unix.SetNonblock(int(a.fd), true); err != nil {
		return err
	}
	return w.register(a.fd, a, unix.EPOLLIN|unix.EPOLLEXCLUSIVE)
}

func (a *acceptor) close(w *worker) {
	w.unregister(a.fd)
	sysClose(a.fd)
}

// stop ends the acceptor. Other workers and processes may continue to wait at
// the same socket, and the kernel wakes one waiter per connection. The acceptor
// therefore first leaves the epoll set. It then accepts the connections for
// which the kernel may have woken it.
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
			if w.engine.Reserve.Taken() { // another worker needs this file to shed a connection
				sysClose(fd)
				w.engine.Reserve.Open()
				w.engine.Handler.RefuseNoFiles(a.listener, remote)
				continue
			}
			if !a.checked {
				a.checked, a.inherits = true, sysHasKeepalive(fd)
			}
			if !a.inherits {
				sysSetsockopt(fd, unix.IPPROTO_TCP, unix.TCP_NODELAY, 1)
			}
			a.admit(w, fd, remote)
		case errno == unix.EAGAIN:
			a.batch = max(n, 1)
			return false
		case errno == unix.EINTR || errno == unix.ECONNABORTED || sockets.OutOfFiles(errno) && a.shed(w):
		default:
			a.fail(w, errno)
			return false
		}
	}
	a.batch = min(2*a.batch, maxAccept)
	return true
}

// admit starts a connection. It reads the connection at once if the last
// connection had sent data when it was accepted. Otherwise a wait for an event
// costs less.
func (a *acceptor) admit(w *worker, fd int32, remote netip.AddrPort) {
	session := w.engine.Handler.Accept(a.listener, remote, w.time(), w.tryReserve)
	if session == nil {
		sysClose(fd)
		return
	}
	c := newConn(session, fd, w.now)
	c.keepalive = a.inherits
	w.conns++
	w.hellos.push(c)
	if err := w.register(fd, &c.client, inEvents); err != nil {
		c.close(w, EndCut)
		return
	}
	if a.skipped++; !a.readNow && a.skipped < readEvery {
		return
	}
	a.skipped, c.client.readable = 0, true
	c.readHello(w)
	a.readNow = c.hello != nil || c.state != receiving
}

// shed accepts and closes one pending connection with the reserve file. It
// returns false if no connection is pending, or if the shed is not possible.
func (a *acceptor) shed(w *worker) (done bool) {
	var remote netip.AddrPort
	w.engine.Reserve.Use(func() {
		fd, from, errno := sysAccept(a.fd)
		if errno == 0 {
			done, remote = true, from
			sysClose(fd)
		}
	})
	if done {
		w.engine.Handler.RefuseNoFiles(a.listener, remote)
	}
	return done
}

// fail pauses the acceptor after an error, or ends the engine if the error is
// permanent.
func (a *acceptor) fail(w *worker, errno unix.Errno) {
	if !sockets.IsTemporary(errno) {
		w.engine.fail(fmt.Errorf("accept (listener %s): %w", a.name, errno))
	}
	a.pause = min(max(2*a.pause, sockets.MinAcceptPause), sockets.MaxAcceptPause)
	w.engine.Logger.Warn("cannot accept connections", "listener", a.name, "err", errno, "duration", a.pause)
	a.resume, a.paused = w.now+a.pause, true
	w.control(unix.EPOLL_CTL_DEL, a.fd, 0)
	w.unregister(a.fd)
}

// reopenAcceptors resumes acceptors whose pause is over. It returns the time
// until the next pause is over, or a negative number if there are no pauses.
func (w *worker) reopenAcceptors() time.Duration {
	next := time.Duration(-1)
	for _, a := range w.acceptors {
		if !a.paused {
			continue
		}
		if left := a.resume - w.now; left > 0 {
			if next < 0 || left < next {
				next = left
			}
		} else if err := a.open(w); err != nil {
			a.resume, a.paused = w.now+sockets.MaxAcceptPause, true
			next = sockets.MaxAcceptPause
		}
	}
	return next
}

// reserve counts one more connection of the engine. At the limit, the oldest
// connection without a ClientHello is closed. If no such connection is older
// than ShedAfter, reserve returns false. A connection of another worker is
// closed by that worker after a message.
func (w *worker) reserve() bool {
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
		owner.send(message{kind: shedOne})
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
