// SPDX-License-Identifier: MPL-2.0

package reactor

import (
	"errors"
	"os"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// parking waits for events of an epoll descriptor with the network poller of
// Go, which reports the descriptor as readable when it has events. A parked
// worker occupies neither a thread nor a processor of the Go scheduler. During
// a system call that blocks, in contrast, the monitor thread of Go polls until
// it has taken the processor from the worker (docs/decisions/0006).
type parking struct {
	file        *os.File // owns the epoll descriptor
	conn        syscall.RawConn
	hasDeadline bool
}

// newParking returns the parking of an epoll descriptor. If the file of the
// result is not nil, it owns the descriptor, also after an error.
func newParking(epoll int) (parking, error) {
	// The poller of Go accepts only non-blocking descriptors.
	if err := unix.SetNonblock(epoll, true); err != nil {
		return parking{}, os.NewSyscallError("fcntl", err)
	}
	p := parking{file: os.NewFile(uintptr(epoll), "epoll")}
	err := p.file.SetReadDeadline(time.Time{}) // fails if the poller has not accepted the descriptor
	if err == nil {
		p.conn, err = p.file.SyscallConn()
	}
	return p, err
}

// await calls poll with timeout 0 until poll returns events or an error, and
// between the calls waits for the poller of Go. It returns the number of
// events, which is 0 after limit. A negative limit is none.
func (p *parking) await(poll func(timeout int) (int, unix.Errno), limit time.Duration) (n int, err error) {
	if p.hasDeadline || limit >= 0 {
		var deadline time.Time
		if p.hasDeadline = limit >= 0; p.hasDeadline {
			deadline = time.Now().Add(limit)
		}
		if err := p.file.SetReadDeadline(deadline); err != nil {
			return 0, err
		}
	}
	var errno unix.Errno
	err = p.conn.Read(func(uintptr) bool {
		n, errno = poll(0)
		return n > 0 || errno != 0
	})
	switch {
	case errors.Is(err, os.ErrDeadlineExceeded), errno == unix.EINTR:
		return n, nil
	case errno != 0:
		return 0, os.NewSyscallError("epoll_wait", errno)
	}
	return n, err
}
