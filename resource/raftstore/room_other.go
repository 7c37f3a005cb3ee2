// SPDX-License-Identifier: MPL-2.0

//go:build !linux

package raftstore

import "os"

// preallocate takes the room as it is written to.
func preallocate(f *os.File, size int64) error {
	_, err := f.WriteAt([]byte{0}, size-1)
	return err
}
