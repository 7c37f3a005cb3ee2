// SPDX-License-Identifier: MPL-2.0

package raftstore

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"hash"
	"io"
	"io/fs"
	"os"
	"path/filepath"
)

// summing counts and sums what goes through it. Of reading it keeps the first error that is not the end.
type summing struct {
	r   io.Reader
	w   io.Writer
	sum hash.Hash
	n   int64
	err error
}

func (s *summing) Read(p []byte) (int, error) {
	n, err := s.r.Read(p)
	s.n += int64(n)
	s.sum.Write(p[:n])
	if err != nil && !errors.Is(err, io.EOF) && s.err == nil {
		s.err = err
	}
	return n, err
}

func (s *summing) Write(p []byte) (int, error) {
	n, err := s.w.Write(p)
	s.n += int64(n)
	s.sum.Write(p[:n])
	return n, err
}

// ArchiveFile is a snapshot file that is being written. Its bytes stand in a temporary file beside the path, until Commit
// gives it its name; so that there never is a file of that name that is not whole. One that was there is never replaced.
type ArchiveFile struct {
	path string
	tmp  *os.File
	out  summing
}

// CreateArchive begins a snapshot file, mode 0600. The caller commits or aborts it.
func CreateArchive(path string) (*ArchiveFile, error) {
	if _, err := os.Lstat(path); err == nil {
		return nil, fmt.Errorf("%s exists: choose another name, or move it away", path)
	}
	tmp, err := os.CreateTemp(filepath.Dir(path), "."+filepath.Base(path)+".*.tmp") // 0600
	if err != nil {
		return nil, fmt.Errorf("write snapshot file: %w", err)
	}
	a := &ArchiveFile{path: path, tmp: tmp, out: summing{w: tmp, sum: sha256.New()}}
	if _, err := tmp.Seek(HeaderSize, io.SeekStart); err != nil {
		return nil, errors.Join(err, a.Abort())
	}
	return a, nil
}

// Write adds data.
func (a *ArchiveFile) Write(p []byte) (int, error) { return a.out.Write(p) }

// Commit completes the file, durably, if its data are what the manifest says.
func (a *ArchiveFile) Commit(m Manifest) (err error) {
	defer func() {
		if err != nil {
			err = errors.Join(fmt.Errorf("write snapshot file %s: %w", a.path, err), a.Abort())
		}
	}()
	if sum := hex.EncodeToString(a.out.sum.Sum(nil)); a.out.n != m.Size || sum != m.SHA256 {
		return fmt.Errorf("%d bytes of data with SHA-256 %s have come, not %d with %s: they were damaged on the way", a.out.n, sum, m.Size, m.SHA256)
	}
	header, err := m.Header()
	if err != nil {
		return err
	}
	if _, err := a.tmp.WriteAt(header, 0); err != nil {
		return err
	}
	if err := a.tmp.Sync(); err != nil {
		return err
	}
	if err := os.Link(a.tmp.Name(), a.path); err != nil { // unlike a rename, it replaces nothing
		return err
	}
	return errors.Join(a.Abort(), syncDir(filepath.Dir(a.path)))
}

// Abort removes the temporary file. It is idempotent, and does nothing after Commit.
func (a *ArchiveFile) Abort() error {
	if err := a.tmp.Close(); errors.Is(err, os.ErrClosed) {
		return nil
	}
	if err := os.Remove(a.tmp.Name()); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return nil
}
