// SPDX-License-Identifier: MPL-2.0

package gateway

import (
	"net"
	"time"

	"golang.org/x/sys/unix"
)

// setUserTimeout ends c when sent data stays unacknowledged for d (TCP_USER_TIMEOUT, RFC 5482).
func setUserTimeout(c *net.TCPConn, d time.Duration) error {
	raw, err := c.SyscallConn()
	if err != nil {
		return err
	}
	var set error
	if err := raw.Control(func(fd uintptr) {
		set = unix.SetsockoptInt(int(fd), unix.IPPROTO_TCP, unix.TCP_USER_TIMEOUT, int(d.Milliseconds()))
	}); err != nil {
		return err
	}
	return set
}

// maxFiles is how many files and sockets this process may have open.
func maxFiles() int {
	var r unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &r); err != nil {
		return 1024
	}
	return int(min(r.Cur, 1<<30))
}
