// SPDX-License-Identifier: MPL-2.0

package dirlock

import (
	"errors"
	"os"
	"path/filepath"
)

// ErrInUse: another process has locked the directory.
var ErrInUse = errors.New("in use by another process")

// Lock creates a directory with mode 0700 if it does not exist, and locks a file
// in it with flock. The lock ends when the caller closes the file, or with the
// process. Lock does not block: the error is ErrInUse if the lock is held.
func Lock(dir, name string) (*os.File, error) {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, err
	}
	lock, err := os.OpenFile(filepath.Join(dir, name), os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return nil, err
	}
	if err := flock(lock); err != nil {
		return nil, errors.Join(err, lock.Close())
	}
	return lock, nil
}
