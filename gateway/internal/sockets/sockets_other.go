// SPDX-License-Identifier: MPL-2.0

//go:build !linux

package sockets

import (
	"net"
	"time"
)

// setUserTimeout does nothing: keepalive alone detects dead peers, and the
// limit of the system applies to unacknowledged data.
func setUserTimeout(*net.TCPConn, time.Duration) {}

// MaxFiles returns a number without meaning: the limit is not read on this
// system.
func MaxFiles() int { return 1 << 30 }

// PeerClosed returns false: on this system a disconnect is noticed when
// something is written.
func PeerClosed(net.Conn, bool) bool { return false }
