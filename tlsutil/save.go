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

// Save writes the pair to two new files: the certificate with mode 0644, the
// key with mode 0600. Each file is complete or does not exist. Save never
// replaces a file. If one of the files exists, Save returns fs.ErrExist and
// leaves no new file.
func (p KeyPair) Save(certPath, keyPath string) error {
	for _, path := range []string{keyPath, certPath} {
		if _, err := os.Lstat(path); err == nil {
			return existsError(path)
		}
	}
	if err := create(keyPath, p.Key, 0o600); err != nil {
		return err
	}
	if err := create(certPath, p.Cert, 0o644); err != nil {
		return join(err, os.Remove(keyPath))
	}
	return nil
}

// maxNumber limits the numbers that SaveNumbered tries.
const maxNumber = 100_000

// SaveNumbered saves the pair as <prefix>-<i>.pem and <prefix>-<i>-key.pem, and
// returns the two paths. i is the lowest number for which neither file exists.
// Several processes may call SaveNumbered at the same time.
func (p KeyPair) SaveNumbered(prefix string) (certPath, keyPath string, err error) {
	return p.saveNumbered(prefix, ".pem")
}

// SaveRequest saves the pair of CreateCSR as <prefix>-<i>.csr and
// <prefix>-<i>-key.pem, like SaveNumbered.
func (p KeyPair) SaveRequest(prefix string) (csrPath, keyPath string, err error) {
	return p.saveNumbered(prefix, ".csr")
}

func (p KeyPair) saveNumbered(prefix, ext string) (certPath, keyPath string, err error) {
	for i := range maxNumber {
		certPath, keyPath = fmt.Sprintf("%s-%d%s", prefix, i, ext), fmt.Sprintf("%s-%d-key.pem", prefix, i)
		err = p.Save(certPath, keyPath)
		if !errors.Is(err, fs.ErrExist) {
			return certPath, keyPath, err
		}
	}
	return "", "", fmt.Errorf("%s-0.pem to %s-%d.pem all exist; use another directory", prefix, prefix, maxNumber-1)
}

func existsError(path string) error {
	text := path + " exists already and is not overwritten; move it away or use another directory"
	return &describedError{text, fs.ErrExist}
}

// SaveCert writes a certificate to a new file, like Save.
func SaveCert(path string, cert []byte) error { return create(path, cert, 0o644) }

// create creates a file atomically. It writes and syncs a temporary file in the
// same directory, and links the file to path. The link fails if path exists.
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
		return existsError(path)
	case err != nil: // the file system does not support hard links
		if err := createExclusive(path, b, mode); err != nil {
			return err
		}
	}
	return atomicfile.SyncDir(filepath.Dir(path))
}

// createExclusive is create for a file system without hard links. The file is
// visible while createExclusive writes it. After an error, the file is removed.
func createExclusive(path string, b []byte, mode fs.FileMode) error {
	f, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_EXCL, mode)
	if errors.Is(err, fs.ErrExist) {
		return existsError(path)
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
