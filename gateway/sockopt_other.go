// SPDX-License-Identifier: MPL-2.0

//go:build !linux

package gateway

import (
	"net"
	"time"
)

// setUserTimeout does nothing here: keepalive alone finds dead peers, and the system's own limit unacknowledged data.
func setUserTimeout(*net.TCPConn, time.Duration) error { return nil }

// maxFiles is how many files and sockets this process may have open; systems differ, so it is not asked for.
func maxFiles() int { return 1 << 30 }
