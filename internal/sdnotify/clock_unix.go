// SPDX-License-Identifier: MPL-2.0

//go:build unix

package sdnotify

import "golang.org/x/sys/unix"

// monotonicNano returns the time of CLOCK_MONOTONIC in nanoseconds.
func monotonicNano() (int64, error) {
	var now unix.Timespec
	err := unix.ClockGettime(unix.CLOCK_MONOTONIC, &now)
	return now.Nano(), err
}
