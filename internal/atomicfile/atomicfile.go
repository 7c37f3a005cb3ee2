// SPDX-License-Identifier: MPL-2.0

package atomicfile

import (
	"errors"
	"os"
	"path/filepath"
)

// suffix marks the temporary file. Its name is always the same, so that a crash
// leaves at most one such file. One process at a time may write a path.
const suffix = ".new"

// WriteFile replaces the contents of path with data. The file gets the
// permission bits of perm, regardless of its previous permissions. WriteFile
// writes a temporary file in the same directory, syncs it, renames it to path,
// and syncs the directory. After an error, path has its old contents and the
// temporary file is removed.
func WriteFile(path string, data []byte, perm os.FileMode) error {
	tmp := path + suffix
	if err := writeSynced(tmp, data, perm); err != nil {
		return errors.Join(err, removeIfPresent(tmp))
	}
	if err := os.Rename(tmp, path); err != nil {
		return errors.Join(err, removeIfPresent(tmp))
	}
	return SyncDir(filepath.Dir(path))
}

// SyncDir flushes the entries of a directory to disk: names that were created,
// renamed or removed there.
func SyncDir(dir string) error {
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
	// A file left by a crash keeps its mode, and the umask may have cut perm.
	err = f.Chmod(perm)
	if err == nil {
		_, err = f.Write(data)
	}
	if err == nil {
		err = f.Sync()
	}
	return errors.Join(err, f.Close())
}

func removeIfPresent(path string) error {
	if err := os.Remove(path); err != nil && !errors.Is(err, os.ErrNotExist) {
		return err
	}
	return nil
}
