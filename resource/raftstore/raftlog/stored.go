// SPDX-License-Identifier: MPL-2.0

package raftlog

import (
	"encoding/binary"
	"errors"
	"hash/crc32"
	"os"
	"path/filepath"
)

// storedFile is a file in Config.Dir. It contains the index of the last entry
// that was stored and not deleted, as a little-endian number, and the CRC-32C
// of that number. The index is never below the highest committed index that
// this server has stored.
//
// The file is written after each write of the log, without fsync. The end of
// the process therefore loses nothing. After a power failure the file may have
// an index that is too low by the entries of the last half minute, because the
// kernel writes the file later.
const storedFile = "stored-index"

// storedIndex is the open storedFile.
type storedIndex struct {
	file  *os.File
	index uint64
}

// openStored opens the storedFile of dir, or creates it with index 0. An empty
// or damaged file has index 0 too: the log is intact without it.
func openStored(dir string) (storedIndex, error) {
	f, err := os.OpenFile(filepath.Join(dir, storedFile), os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return storedIndex{}, err
	}
	s := storedIndex{file: f}
	b := make([]byte, 8+crc32.Size)
	n, _ := f.ReadAt(b, 0)
	if index := binary.LittleEndian.Uint64(b); n == len(b) && string(b) == string(encodeStored(index)) {
		s.index = index
	}
	return s, nil
}

func encodeStored(index uint64) []byte {
	b := binary.LittleEndian.AppendUint64(nil, index)
	return binary.LittleEndian.AppendUint32(b, crc32.Checksum(b, castagnoli))
}

// set writes index to the file.
func (s *storedIndex) set(index uint64) error {
	if index == s.index {
		return nil
	}
	_, err := s.file.WriteAt(encodeStored(index), 0)
	if err == nil {
		s.index = index
	}
	return err
}

// lower durably writes index to the file, before entries above index are
// deleted.
func (s *storedIndex) lower(index uint64) error {
	if err := s.set(index); err != nil {
		return err
	}
	return s.file.Sync()
}

// close closes the file. It is idempotent. Sync fails on a disk that has become
// read-only. Without it, only a power failure may leave an index that is too
// low.
func (s *storedIndex) close() error {
	_ = s.file.Sync()
	if err := s.file.Close(); !errors.Is(err, os.ErrClosed) {
		return err
	}
	return nil
}
