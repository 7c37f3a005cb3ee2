// SPDX-License-Identifier: MPL-2.0

package tlsutil

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/wanfed/wanfed/internal/atomicfile"
)

// Save writes the pair to two new files: the certificate with mode 0644, the key
// with mode 0600. Each file appears complete or not at all. Save never replaces a
// file. If one of them exists, it returns an error that is fs.ErrExist and leaves
// no new file.
func (p KeyPair) Save(certPath, keyPath string) error {
	for _, path := range []string{keyPath, certPath} {
		if _, err := os.Lstat(path); err == nil {
			return &existsError{path}
		}
	}
	if err := create(keyPath, p.Key, 0o600); err != nil {
		return err
	}
	if err := create(certPath, p.Cert, 0o644); err != nil {
		return join(err, os.Remove(keyPath)) // create has written it
	}
	return nil
}

// maxNumber limits the numbers that SaveNumbered tries.
const maxNumber = 100_000

// SaveNumbered saves the pair as <prefix>-<i>.pem and <prefix>-<i>-key.pem, with
// the first i from 0 for which neither file exists. It returns the two paths.
// Several processes may call it at the same time.
func (p KeyPair) SaveNumbered(prefix string) (certPath, keyPath string, err error) {
	for i := range maxNumber {
		certPath, keyPath = fmt.Sprintf("%s-%d.pem", prefix, i), fmt.Sprintf("%s-%d-key.pem", prefix, i)
		err = p.Save(certPath, keyPath)
		if !errors.Is(err, fs.ErrExist) {
			return certPath, keyPath, err
		}
	}
	return "", "", fmt.Errorf("%s-0.pem to %s-%d.pem all exist; use another directory", prefix, prefix, maxNumber-1)
}

type existsError struct{ path string }

func (e *existsError) Error() string {
	return fmt.Sprintf("%s exists already and is not overwritten; move it away or use another directory", e.path)
}

func (e *existsError) Is(target error) bool { return target == fs.ErrExist }

// create creates a file atomically. It writes and syncs a temporary file in the
// same directory and links it to path, which fails if path exists.
func create(path string, b []byte, mode fs.FileMode) (err error) {
	defer func() {
		if err != nil && !errors.Is(err, fs.ErrExist) {
			err = fmt.Errorf("write %s: %w", path, err)
		}
	}()
	tmp, err := os.CreateTemp(filepath.Dir(path), ".wanfed-*.tmp") // mode 0600
	if err != nil {
		return err
	}
	defer os.Remove(tmp.Name())
	_, err = tmp.Write(b)
	err = errors.Join(err, tmp.Chmod(mode), tmp.Sync())
	if err := errors.Join(err, tmp.Close()); err != nil {
		return err
	}
	switch err := os.Link(tmp.Name(), path); {
	case errors.Is(err, fs.ErrExist):
		return &existsError{path}
	case err != nil: // the file system has no hard links
		if err := createExclusive(path, b, mode); err != nil {
			return err
		}
	}
	return atomicfile.SyncDir(filepath.Dir(path))
}

// createExclusive is create for a file system without links. The file is visible
// while it is written, and is removed after an error.
func createExclusive(path string, b []byte, mode fs.FileMode) error {
	f, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_EXCL, mode)
	if errors.Is(err, fs.ErrExist) {
		return &existsError{path}
	}
	if err != nil {
		return err
	}
	_, err = f.Write(b)
	if err := errors.Join(err, f.Sync(), f.Close()); err != nil {
		return errors.Join(err, os.Remove(path))
	}
	return nil
}
