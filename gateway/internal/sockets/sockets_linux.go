// SPDX-License-Identifier: MPL-2.0

package sockets

import (
	"net"
	"time"

	"golang.org/x/sys/unix"
)

// setUserTimeout makes the kernel end c when data remains unacknowledged for d
// (TCP_USER_TIMEOUT, RFC 5482).
func setUserTimeout(c *net.TCPConn, d time.Duration) {
	raw, err := c.SyscallConn()
	if err != nil {
		return
	}
	raw.Control(func(fd uintptr) {
		unix.SetsockoptInt(int(fd), unix.IPPROTO_TCP, unix.TCP_USER_TIMEOUT, int(d.Milliseconds()))
	})
}

// MaxFiles returns the number of files and sockets that this process may have
// open.
func MaxFiles() int {
	var r unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &r); err != nil {
		return 1024
	}
	return int(min(r.Cur, 1<<30))
}

// PeerClosed reports whether the peer of a TCP connection has reset it. If half
// is true, it also reports whether the peer has ended its direction. PeerClosed
// neither reads nor blocks.
func PeerClosed(c net.Conn, half bool) bool {
	t, ok := c.(*net.TCPConn)
	if !ok {
		return false
	}
	raw, err := t.SyscallConn()
	if err != nil {
		return true
	}
	var fds [1]unix.PollFd
	if half {
		fds[0].Events = unix.POLLRDHUP
	}
	err = raw.Control(func(fd uintptr) {
		fds[0].Fd = int32(fd)
		unix.Poll(fds[:], 0)
	})
	return err != nil || fds[0].Revents != 0
}
