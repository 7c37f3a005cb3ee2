// SPDX-License-Identifier: MPL-2.0

package raftstore

import (
	"fmt"
	"os"

	"golang.org/x/sys/unix"
)

func preallocate(f *os.File, size int64) error {
	if err := unix.Fallocate(int(f.Fd()), 0, 0, size); err != nil && err != unix.EOPNOTSUPP {
		return fmt.Errorf("make a file of %d bytes: %w", size, err)
	}
	return nil
}
