// SPDX-License-Identifier: MPL-2.0

//go:build !linux

package sockets

import (
	"net"
	"time"
)

// setUserTimeout does nothing: keepalive detects dead peers, and the limit of
// the system applies to unacknowledged data.
func setUserTimeout(*net.TCPConn, time.Duration) {}

// MaxFiles returns 1<<30: the limit is not read on this system.
func MaxFiles() int { return 1 << 30 }

// PeerClosed returns false: on this system, a write detects a disconnect.
func PeerClosed(net.Conn, bool) bool { return false }
