// SPDX-License-Identifier: MPL-2.0

//go:build unix

package wanfed_test

import (
	"syscall"
	"time"
)

// cpuTime returns the user and system CPU time of this process.
func cpuTime() time.Duration {
	var u syscall.Rusage
	if syscall.Getrusage(syscall.RUSAGE_SELF, &u) != nil {
		return 0
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}
