// SPDX-License-Identifier: MPL-2.0

package main

import (
	"os"

	"golang.org/x/sys/unix"
)

// preallocate reserves disk space for the first n bytes of a file.
func preallocate(f *os.File, n int64) error {
	return os.NewSyscallError("fallocate", unix.Fallocate(int(f.Fd()), 0, 0, n))
}

func syncData(f *os.File) error {
	return os.NewSyscallError("fdatasync", unix.Fdatasync(int(f.Fd())))
}
