// SPDX-License-Identifier: MPL-2.0

package main

import (
	"fmt"
	"io"
	"os"
)

// Bounds of files, in bytes: far above any that somebody wrote, far below what a machine has in memory. A name that was given by
// mistake may be that of a device without an end.
const (
	maxSettings  = 16 << 20 // of settings, or of routes: a hundred thousand of them
	maxPEM       = 4 << 20
	maxResources = 256 << 20
)

// readBounded reads the file at path, which may be a pipe, if it has no more than limit bytes.
func readBounded(path string, limit int64) ([]byte, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	return readAtMost(f, path, limit)
}

// readAtMost reads all of r, which errors call name, if that is no more than limit bytes.
func readAtMost(r io.Reader, name string, limit int64) ([]byte, error) {
	b, err := io.ReadAll(io.LimitReader(r, limit+1))
	if err == nil && int64(len(b)) > limit {
		return nil, fmt.Errorf("%s has more than %d bytes: is it the right file?", name, limit)
	}
	return b, err
}
