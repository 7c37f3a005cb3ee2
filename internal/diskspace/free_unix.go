// SPDX-License-Identifier: MPL-2.0

//go:build unix

package diskspace

import "golang.org/x/sys/unix"

// Free returns the number of bytes that the current user may still write to the
// disk of a directory. The error of a system other than Unix is
// errors.ErrUnsupported.
func Free(dir string) (uint64, error) {
	var st unix.Statfs_t
	if err := unix.Statfs(dir, &st); err != nil {
		return 0, err
	}
	return uint64(st.Bavail) * uint64(st.Bsize), nil
}
