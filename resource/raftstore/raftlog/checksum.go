// SPDX-License-Identifier: MPL-2.0

package raftlog

import (
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"path/filepath"

	"github.com/hashicorp/raft"
	wal "github.com/hashicorp/raft-wal"
)

// ErrDamaged is an error of Open and Config.Fail: the disk does not have what
// was written to it. The error that wraps ErrDamaged names the entry and the
// file.
var ErrDamaged = errors.New("damaged")

// Each entry has a checksum on disk, in the extensions of the entry. Raft does
// not use the extensions. GetLog verifies and removes the checksum, so an entry
// has no checksum in memory and on the network. An entry without extensions was
// written by a version without checksums, and is accepted.
const (
	checksumKind = 'c' // first byte of the extensions; the CRC-32C follows
	checksumSize = 1 + crc32.Size
)

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// appendChecksum appends the extensions of an entry to b. The checksum covers
// all fields that Raft uses.
func appendChecksum(b []byte, e *raft.Log) []byte {
	var head [17]byte
	binary.LittleEndian.PutUint64(head[0:], e.Index)
	binary.LittleEndian.PutUint64(head[8:], e.Term)
	head[16] = byte(e.Type)
	sum := crc32.Update(crc32.Checksum(head[:], castagnoli), castagnoli, e.Data)
	return binary.LittleEndian.AppendUint32(append(b, checksumKind), sum)
}

// withChecksums returns copies of entries with their checksums. The data are
// shared.
func withChecksums(entries []*raft.Log) []*raft.Log {
	copies := make([]raft.Log, len(entries))
	out := make([]*raft.Log, len(entries))
	sums := make([]byte, 0, checksumSize*len(entries))
	for i, e := range entries {
		copies[i] = *e
		sums = appendChecksum(sums, e)
		copies[i].Extensions = sums[checksumSize*i:]
		out[i] = &copies[i]
	}
	return out
}

// verify checks that e is the entry at index, and removes its checksum.
func verify(e *raft.Log, index uint64) error {
	if e.Index != index {
		return fmt.Errorf("it has index %d", e.Index)
	}
	if len(e.Extensions) > 0 && string(e.Extensions) != string(appendChecksum(nil, e)) {
		return errors.New("its checksum differs")
	}
	e.Extensions = nil
	return nil
}

// read returns the entry at index with a correct checksum. If the log does not
// have the entry, read returns raft.ErrLogNotFound. If the entry cannot be read
// or differs from the written entry, read returns an ErrDamaged.
func (l *Log) read(index uint64, e *raft.Log) (err error) {
	defer func() {
		if p := recover(); p != nil { // raft-wal panics on some damaged entries
			err = l.damagedEntry(index, fmt.Errorf("it cannot be decoded: %v", p))
		}
	}()
	err = l.WAL.GetLog(index, e)
	switch {
	case errors.Is(err, raft.ErrLogNotFound), errors.Is(err, wal.ErrClosed):
		return err
	case err == nil:
		err = verify(e, index)
	}
	if err != nil {
		*e = raft.Log{}
		return l.damagedEntry(index, err)
	}
	return nil
}

func (l *Log) damagedEntry(index uint64, reason error) error {
	return fmt.Errorf("%w: log entry %d in %s: %w", ErrDamaged, index, l.segmentOf(index), reason)
}

// segmentOf returns the path of the segment file that has the entry at index.
// The name of a segment file begins with the index of its first entry.
func (l *Log) segmentOf(index uint64) string {
	paths, _ := filepath.Glob(filepath.Join(l.cfg.Dir, "*.wal")) // sorted
	found := l.cfg.Dir
	for _, path := range paths {
		var first uint64
		if _, err := fmt.Sscanf(filepath.Base(path), "%020d-", &first); err != nil || first > index {
			break
		}
		found = path
	}
	return found
}

// checkComplete checks that the newest snapshot and the log have all entries up
// to the last entry that was stored. It verifies the entries after the
// snapshot. unreadable describes newer snapshots that cannot be read, or is
// nil.
//
// raft-wal ends the log at the first frame that it cannot read, because a crash
// may tear the last write. Such a write was not acknowledged. Therefore a log
// that ends before the stored index is damaged.
func (l *Log) checkComplete(unreadable error) error {
	first, err := l.FirstIndex()
	if err != nil {
		return err
	}
	last, err := l.LastIndex()
	if err != nil {
		return err
	}
	snapshot := l.SnapshotIndex()
	damaged := func(format string, args ...any) error {
		err := fmt.Errorf("%w: log in %s: %w", ErrDamaged, l.cfg.Dir, fmt.Errorf(format, args...))
		if unreadable != nil {
			err = fmt.Errorf("%w; %w", unreadable, err)
		}
		return err
	}
	if first > snapshot+1 {
		return damaged("it begins with log entry %d, and entries %d to %d are missing", first, snapshot+1, first-1)
	}
	if end := max(last, snapshot); end < l.stored.index {
		return damaged("it ends with log entry %d, and entry %d was stored", end, l.stored.index)
	}
	for index := snapshot + 1; index <= last; index++ {
		if err := l.read(index, new(raft.Log)); err != nil {
			return err
		}
	}
	return nil
}
