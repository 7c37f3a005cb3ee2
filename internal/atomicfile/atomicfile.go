// SPDX-License-Identifier: MPL-2.0

package atomicfile

import (
	"errors"
	"os"
	"path/filepath"
	"runtime"
)

// suffix is the end of the name of the temporary file. A path always has one
// temporary file name, so a crash leaves at most one file. Only one process may
// write a path at a time.
const suffix = ".new"

// WriteFile replaces the contents of path with data. The file gets the
// permission bits of perm, independent of its previous permissions. WriteFile
// writes and syncs a temporary file in the same directory, renames the file to
// path, and syncs the directory. After an error, path has its old contents, and
// the temporary file is removed.
func WriteFile(path string, data []byte, perm os.FileMode) error {
	tmp := path + suffix
	err := writeSynced(tmp, data, perm)
	if err == nil {
		err = os.Rename(tmp, path)
	}
	if err != nil {
		if removeErr := os.Remove(tmp); !errors.Is(removeErr, os.ErrNotExist) {
			err = errors.Join(err, removeErr)
		}
		return err
	}
	return SyncDir(filepath.Dir(path))
}

// SyncDir flushes the entries of a directory to disk. The entries are the names
// that were created, renamed or removed in the directory.
func SyncDir(dir string) error {
	if runtime.GOOS == "windows" {
		return nil // Windows has no such operation
	}
	d, err := os.Open(dir)
	if err != nil {
		return err
	}
	return errors.Join(d.Sync(), d.Close())
}

func writeSynced(path string, data []byte, perm os.FileMode) error {
	f, err := os.OpenFile(path, os.O_CREATE|os.O_TRUNC|os.O_WRONLY, perm)
	if err != nil {
		return err
	}
	// A file that a crash left keeps its mode, and the umask may have reduced
	// perm.
	err = f.Chmod(perm)
	if err == nil {
		_, err = f.Write(data)
	}
	if err == nil {
		err = f.Sync()
	}
	return errors.Join(err, f.Close())
}
