// SPDX-License-Identifier: MPL-2.0

//go:build unix

package hotrestart

import (
	"os"
	"os/signal"
	"syscall"

	"golang.org/x/sys/unix"
)

// Notify sends SIGUSR2 of this process, the request for a hot restart, to a
// channel. signal.Stop ends it. A system other than Unix has no such signal.
func Notify(c chan<- os.Signal) { signal.Notify(c, syscall.SIGUSR2) }

// fileOf wraps an inherited descriptor, which children of this process do not
// inherit.
func fileOf(fd int, name string) *os.File {
	syscall.CloseOnExec(fd)
	return os.NewFile(uintptr(fd), name)
}

// duplicate returns a duplicate of a descriptor, which children of this process
// do not inherit.
func duplicate(fd uintptr) (int, error) { return unix.FcntlInt(fd, unix.F_DUPFD_CLOEXEC, 0) }
