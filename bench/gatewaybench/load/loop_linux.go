// SPDX-License-Identifier: MPL-2.0

package load

import (
	"context"
	"errors"
	"fmt"
	"os"
	"runtime"
	"time"

	"golang.org/x/sys/unix"
)

// rawConn is a TCP connection of a loop. The fields after handler belong to the
// handler.
type rawConn struct {
	fd         int
	generation int32 // identifies events of an earlier connection with the same descriptor
	handler    handler

	start    time.Time // start of the latency that is being measured
	received int       // bytes of the response so far
	buf      []byte    // data already read, or data to write
	op       byte      // operation of the request
	skipped  int       // paced messages skipped since the last one was sent
}

// handler handles the events of a connection. The loop calls it, so it must not
// block.
type handler interface {
	ready(c *rawConn, events uint32)
}

// loop handles connections with level-triggered epoll. Only the goroutine that
// calls run may use its methods.
type loop struct {
	epoll, timer int
	generation   int32
	conns        []*rawConn // by descriptor
	events       []unix.EpollEvent
	onTimer      func(now time.Time)
	err          error // not nil: run returns
}

func newLoop() (*loop, error) {
	ep, err := unix.EpollCreate1(unix.EPOLL_CLOEXEC)
	if err != nil {
		return nil, os.NewSyscallError("epoll_create1", err)
	}
	timer, err := unix.TimerfdCreate(unix.CLOCK_MONOTONIC, unix.TFD_NONBLOCK|unix.TFD_CLOEXEC)
	if err != nil {
		unix.Close(ep)
		return nil, os.NewSyscallError("timerfd_create", err)
	}
	l := &loop{epoll: ep, timer: timer, events: make([]unix.EpollEvent, 256)}
	if err := l.control(unix.EPOLL_CTL_ADD, timer, unix.EPOLLIN, 0); err != nil {
		l.close()
		return nil, err
	}
	return l, nil
}

// close closes the loop and all its connections.
func (l *loop) close() {
	for _, c := range l.conns {
		if c != nil {
			unix.Close(c.fd)
		}
	}
	unix.Close(l.timer)
	unix.Close(l.epoll)
}

func (l *loop) control(op, fd int, events uint32, gen int32) error {
	err := unix.EpollCtl(l.epoll, op, fd, &unix.EpollEvent{Events: events, Fd: int32(fd), Pad: gen})
	return os.NewSyscallError("epoll_ctl", err)
}

// add registers c for events. From now on the loop closes c.fd.
func (l *loop) add(c *rawConn, events uint32) error {
	l.generation++
	c.generation = l.generation
	for len(l.conns) <= c.fd {
		l.conns = append(l.conns, nil)
	}
	l.conns[c.fd] = c
	return l.control(unix.EPOLL_CTL_ADD, c.fd, events, c.generation)
}

func (l *loop) change(c *rawConn, events uint32) error {
	return l.control(unix.EPOLL_CTL_MOD, c.fd, events, c.generation)
}

// drop closes c. Further calls do nothing.
func (l *loop) drop(c *rawConn) {
	if c.fd < 0 {
		return
	}
	if c.fd < len(l.conns) && l.conns[c.fd] == c {
		l.conns[c.fd] = nil
	}
	unix.Close(c.fd)
	c.fd = -1
}

// fail makes run return err.
func (l *loop) fail(err error) {
	if l.err == nil {
		l.err = err
	}
}

// wakeIn calls onTimer once after d.
func (l *loop) wakeIn(d time.Duration) {
	d = max(d, 1) // 0 would stop the timer
	spec := unix.ItimerSpec{Value: unix.NsecToTimespec(d.Nanoseconds())}
	if err := unix.TimerfdSettime(l.timer, 0, &spec, nil); err != nil {
		l.fail(os.NewSyscallError("timerfd_settime", err))
	}
}

// errStop is the error of stop. run converts it to nil.
var errStop = errors.New("stop")

// stop makes run return nil.
func (l *loop) stop() { l.fail(errStop) }

// run handles events until a handler fails, ctx ends or d has passed. Only a
// failed handler results in an error.
func (l *loop) run(ctx context.Context, d time.Duration) error {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	for end := time.Now().Add(d); l.err == nil && ctx.Err() == nil; {
		left := time.Until(end)
		if left <= 0 {
			return nil
		}
		n, err := unix.EpollWait(l.epoll, l.events, int(min(left, 100*time.Millisecond)/time.Millisecond)+1)
		if err != nil && err != unix.EINTR {
			return os.NewSyscallError("epoll_wait", err)
		}
		for _, e := range l.events[:max(n, 0)] {
			l.dispatch(e)
		}
	}
	if l.err == errStop {
		l.err = nil
	}
	return l.err
}

func (l *loop) dispatch(e unix.EpollEvent) {
	if int(e.Fd) == l.timer {
		var b [8]byte
		if _, err := unix.Read(l.timer, b[:]); err == nil && l.onTimer != nil {
			l.onTimer(time.Now())
		}
		return
	}
	if c := l.conns[e.Fd]; c != nil && c.generation == e.Pad {
		c.handler.ready(c, e.Events)
	}
}

// retryable reports whether a call on a socket must be repeated at its next
// epoll event.
func retryable(err error) bool {
	return err == unix.EAGAIN || err == unix.EINTR || err == unix.ENOTCONN
}

// RaiseFileLimit raises the limit of open files to its maximum and returns it.
// Child processes inherit the limit.
func RaiseFileLimit() (int, error) {
	var r unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &r); err != nil {
		return 0, os.NewSyscallError("getrlimit", err)
	}
	r.Cur = r.Max
	if err := unix.Setrlimit(unix.RLIMIT_NOFILE, &r); err != nil {
		return 0, fmt.Errorf("raise the limit of open files to %d: %w", r.Max, err)
	}
	return int(min(r.Cur, 1<<30)), nil
}
