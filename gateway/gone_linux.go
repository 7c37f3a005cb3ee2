// SPDX-License-Identifier: MPL-2.0

package gateway

import (
	"net"

	"golang.org/x/sys/unix"
)

// gone says whether the peer of a TCP connection has closed it, without reading from it. It does not block.
func gone(c net.Conn) bool {
	t, ok := c.(*net.TCPConn)
	if !ok {
		return false
	}
	raw, err := t.SyscallConn()
	if err != nil {
		return true
	}
	fds := []unix.PollFd{{Events: unix.POLLRDHUP}}
	err = raw.Control(func(fd uintptr) {
		fds[0].Fd = int32(fd)
		unix.Poll(fds, 0)
	})
	return err != nil || fds[0].Revents != 0
}
