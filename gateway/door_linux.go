// SPDX-License-Identifier: MPL-2.0

package gateway

import (
	"fmt"
	"net/netip"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// acceptTurn is how many connections a worker takes at once from one listener, so that other workers get some too.
const acceptTurn = 32

// leaveTurns bounds the turns of a door that is left: under load there is no end of connections.
const leaveTurns = 32

// door is where connections of one listener come in to one worker.
type door struct {
	fd    int32
	side  *Listener
	known bool          // apart is known
	apart bool          // what it accepts does not have its settings
	turn  int           // how many it takes next: about as many as came last, since a failed accept costs as much as one that works
	eager bool          // what it accepts is read from at once: the last such connection had said something
	since int           // how many were not
	pause time.Duration // how long it was closed last; zero: accepting works
	until time.Time     // it is closed
	shut  bool          // it is
}

func (w *worker) openDoor(l boundSocket) error {
	fd, err := dup(l.Listener.(syscall.Conn))
	if err != nil {
		return fmt.Errorf("listener %s (%s): %w", l.Addr(), l.owner.name, err)
	}
	d := &door{fd: fd, side: l.owner, turn: 1}
	sysSet(fd, unix.IPPROTO_TCP, unix.TCP_NODELAY, 1) // this and the next two are for what it accepts
	sysAnswers(fd)
	sysWatchPeer(fd)
	w.doors = append(w.doors, d)
	return d.open(w)
}

func (d *door) open(w *worker) error {
	d.shut = false
	if err := unix.SetNonblock(int(d.fd), true); err != nil { // it may be shared with another process
		return err
	}
	return w.register(d.fd, d, unix.EPOLLIN|unix.EPOLLEXCLUSIVE)
}

func (d *door) close(w *worker) {
	w.forget(d.fd)
	sysClose(d.fd)
}

// leave closes the door for good, while others, in this process or another, may go on waiting at the same socket. For each
// connection the kernel wakes one of all that wait. So first this worker waits no more, and then it accepts what it may have
// been woken for: nobody else would, before the next connection comes.
func (d *door) leave(w *worker) {
	if !d.shut {
		w.control(unix.EPOLL_CTL_DEL, d.fd, 0)
	}
	for range leaveTurns {
		if !d.accept(w) {
			break
		}
	}
	d.close(w)
}

func (d *door) event(w *worker, _ uint32) { d.accept(w) }

// accept takes what waits, up to a turn's worth. It returns false if nothing waits any more. If something does, there will be
// another event.
func (d *door) accept(w *worker) (more bool) {
	for n := range d.turn {
		fd, remote, errno := sysAccept(d.fd)
		switch {
		case errno == 0:
			d.pause = 0
			if w.engine.spare.need() { // another worker is about to shed one
				sysClose(fd)
				w.engine.spare.hold()
				d.refuse(w, remote)
				continue
			}
			if !d.known {
				d.known, d.apart = true, !sysWatched(fd)
			}
			if d.apart {
				sysSet(fd, unix.IPPROTO_TCP, unix.TCP_NODELAY, 1)
			}
			d.admit(w, fd, remote)
		case errno == unix.EAGAIN:
			d.turn = max(n, 1)
			return false
		case errno == unix.EINTR || errno == unix.ECONNABORTED || noFiles(errno) && d.shed(w):
		default:
			d.fail(w, errno)
			return false
		}
	}
	d.turn = min(2*d.turn, acceptTurn)
	return true
}

// eagerAgain is after how many connections that were not read from at once another is.
const eagerAgain = 16

// admit takes a connection in, and reads from it at once if the last one had said something by then: else it costs less
// to wait until an event says so.
func (d *door) admit(w *worker, fd int32, remote netip.AddrPort) {
	p := w.admit(d.side, fd, remote, !d.apart)
	if p == nil {
		return
	}
	if d.since++; !d.eager && d.since < eagerAgain {
		return
	}
	d.since, p.client.readable = 0, true
	p.readHello(w)
	d.eager = p.peek != nil || p.state != stateHello
}

// shed closes one connection that waits. It returns false if there is none, or it cannot be done.
func (d *door) shed(w *worker) (done bool) {
	var remote netip.AddrPort
	w.engine.spare.lend(func() {
		fd, from, errno := sysAccept(d.fd)
		if errno == 0 {
			done, remote = true, from
			sysClose(fd)
		}
	})
	if done {
		d.refuse(w, remote)
	}
	return done
}

// refuse counts a connection that was closed because there are no more files.
func (d *door) refuse(w *worker, remote netip.AddrPort) {
	d.side.accepted.Add(1)
	w.engine.refusals.count(d.side, remote.String(), &refusal{reason: ReasonNoFiles})
}

// fail closes the door for a while: the process or the system has run out of something.
func (d *door) fail(w *worker, errno unix.Errno) {
	if !passing(errno) {
		w.engine.fail(fmt.Errorf("accept (listener %s): %w", d.side.name, errno))
	}
	d.pause = min(max(2*d.pause, minPause), maxPause)
	w.engine.log.Warn("cannot accept connections for now", "listener", d.side.name, "err", errno, "pause", d.pause)
	d.until, d.shut = w.now.Add(d.pause), true
	w.control(unix.EPOLL_CTL_DEL, d.fd, 0)
	w.forget(d.fd)
}

// reopen opens the doors whose pause is over, and returns how long it is until the next one's is; negative: there is none.
func (w *worker) reopen() time.Duration {
	next := time.Duration(-1)
	for _, d := range w.doors {
		if !d.shut {
			continue
		}
		if left := d.until.Sub(w.now); left > 0 {
			if next < 0 || left < next {
				next = left
			}
		} else if err := d.open(w); err != nil {
			d.until, d.shut = w.now.Add(maxPause), true
			next = maxPause
		}
	}
	return next
}
