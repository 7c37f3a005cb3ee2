// SPDX-License-Identifier: MPL-2.0

package raftstore

import (
	"errors"
	"io"
	"math"
	"os"
	"syscall"

	"github.com/hashicorp/raft-wal/types"
	"golang.org/x/sys/unix"
)

// reserve sees to it that the first bytes of a file have their blocks on the disk, without changing its size. File systems that
// cannot do that are left alone.
func reserve(path string, bytes int64) error {
	f, err := os.OpenFile(path, os.O_RDWR, 0)
	if err != nil {
		return err
	}
	defer f.Close()
	if err := unix.Fallocate(int(f.Fd()), unix.FALLOC_FL_KEEP_SIZE, 0, bytes); err != nil && !errors.Is(err, unix.EOPNOTSUPP) {
		return err
	}
	return nil
}

// dataEnd returns where in a file that was allocated ahead the data end, or more.
func dataEnd(f *os.File) int64 {
	end, err := f.Seek(0, unix.SEEK_HOLE)
	if err != nil {
		return math.MaxInt64
	}
	_, _ = f.Seek(0, io.SeekStart)
	return end
}

// syncData makes what was written to a file durable, and of what the file system knows of the file as much as it takes to read that again.
func syncData(f types.WritableFile) error {
	c, ok := f.(syscall.Conn)
	if !ok {
		return f.Sync()
	}
	raw, err := c.SyscallConn()
	if err != nil {
		return err
	}
	failed := raw.Control(func(fd uintptr) {
		for err = unix.Fdatasync(int(fd)); err == unix.EINTR; {
			err = unix.Fdatasync(int(fd))
		}
	})
	if failed != nil {
		return failed
	}
	return os.NewSyscallError("fdatasync", err)
}
