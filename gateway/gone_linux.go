// SPDX-License-Identifier: MPL-2.0

package gateway

import (
	"net"

	"golang.org/x/sys/unix"
)

// gone says whether the peer of a TCP connection has broken it off or, if ended counts too, ended its direction, without
// reading from it. It does not block.
func gone(c net.Conn, ended bool) bool {
	t, ok := c.(*net.TCPConn)
	if !ok {
		return false
	}
	raw, err := t.SyscallConn()
	if err != nil {
		return true
	}
	var fds [1]unix.PollFd
	if ended {
		fds[0].Events = unix.POLLRDHUP
	}
	err = raw.Control(func(fd uintptr) {
		fds[0].Fd = int32(fd)
		unix.Poll(fds[:], 0)
	})
	return err != nil || fds[0].Revents != 0
}
