// SPDX-License-Identifier: MPL-2.0

package raftlog

import (
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"

	"github.com/hashicorp/raft"
	wal "github.com/hashicorp/raft-wal"

	"github.com/wanfed/wanfed/internal/atomicfile"
)

// GetLog implements raft.LogStore. It verifies the checksum of the entry. For
// the last entry S of the newest snapshot, GetLog returns an entry that has
// only an index and a term.
//
// After a server installs a snapshot, its log is empty and then begins with
// entry S+1. A leader that did not receive the response for S+1 refers to S
// when it sends S+1 again. Raft searches only the log for S, and would refuse
// the leader's entries. Raft uses only the index and the term of S. To send or
// apply S, Raft would need S-1, which is not in the log.
//
// A damaged entry is never returned. If the newest snapshot includes the entry,
// GetLog returns raft.ErrLogNotFound, and Raft sends the snapshot instead.
// Otherwise GetLog passes an ErrDamaged to Config.Fail.
func (l *Log) GetLog(index uint64, log *raft.Log) error {
	err := l.read(index, log)
	if err == nil || errors.Is(err, wal.ErrClosed) {
		return err
	}
	s := l.snapshot.Load()
	switch {
	case s != nil && s.Index == index:
		*log = raft.Log{Index: s.Index, Term: s.Term, Type: raft.LogNoop}
		return nil
	case !errors.Is(err, ErrDamaged):
		return err
	case s != nil && s.Index > index:
		l.cfg.Logger.Warn("damaged log entry not used, because a snapshot includes it", "index", index, "err", err)
		return raft.ErrLogNotFound
	}
	l.cfg.Fail(err)
	return err
}

// Covers reports whether the log and the snapshot have all entries of a
// leader's snapshot, whose last entry has that index and term. The entries of a
// snapshot are committed. Therefore an equal last entry implies equal earlier
// entries.
//
// Raft installs a snapshot even if the log has entries after it. Raft then
// deletes these entries, which may be acknowledged, and stops making progress.
// Therefore the caller must not pass a covered snapshot to Raft.
func (l *Log) Covers(index, term uint64) bool {
	if l.SnapshotIndex() >= index {
		return true
	}
	var e raft.Log
	return l.GetLog(index, &e) == nil && e.Term == term
}

// SnapshotIndex returns the index of the last entry in the newest snapshot, or
// 0 without a snapshot.
func (l *Log) SnapshotIndex() uint64 {
	if s := l.snapshot.Load(); s != nil {
		return s.Index
	}
	return 0
}

// HasSnapshot reports whether a snapshot that includes entry index is on disk.
func (l *Log) HasSnapshot(index uint64) bool {
	if s := l.installed.Load(); s != nil && s.Index >= index {
		return true
	}
	return l.SnapshotIndex() >= index
}

// Restored must be called after the state machine restores a snapshot.
func (l *Log) Restored() {
	if s := l.installed.Swap(nil); s != nil {
		l.snapshot.Store(s)
		l.mu.Lock()
		defer l.mu.Unlock()
		l.recordStored(max(s.Index, l.stored.index))
	}
}

// openSnapshots finds the newest readable snapshot, and deletes the log if the
// snapshot covers it. Such a log exists if the process ended after Raft stored
// a leader's snapshot and before Raft emptied the log. raft-wal would refuse
// the next entry, because the log has a gap before that entry.
//
// unreadable describes the newer snapshots that cannot be read, or is nil.
func (l *Log) openSnapshots() (unreadable, err error) {
	all, err := l.Snapshots().List()
	if err != nil {
		return nil, err
	}
	unreadable = l.checkMetadata(all)
	for _, meta := range all {
		_, r, err := l.cfg.Snapshots.Open(meta.ID) // verifies the checksum
		if err != nil {                            // Raft tries the next snapshot too
			unreadable = errors.Join(unreadable, damagedSnapshot(l.cfg.SnapshotDir, meta.ID, err))
			continue
		}
		l.snapshot.Store(&raft.Log{Index: meta.Index, Term: meta.Term})
		return unreadable, errors.Join(r.Close(), l.deleteCovered(meta))
	}
	return unreadable, nil
}

func (l *Log) deleteCovered(newest *raft.SnapshotMeta) error {
	first, err := l.FirstIndex()
	if err != nil {
		return err
	}
	last, err := l.LastIndex()
	if err != nil {
		return err
	}
	if last == 0 || last >= newest.Index {
		return nil
	}
	if err := l.DeleteRange(first, last); err != nil {
		return fmt.Errorf("empty the log that snapshot %s covers: %w", newest.ID, err)
	}
	return nil
}

// Snapshots returns a view of Config.Snapshots for Raft. The Log tracks the
// snapshots that Raft stores through the view.
func (l *Log) Snapshots() raft.SnapshotStore { return snapshotStore{l.cfg.Snapshots, l} }

type snapshotStore struct {
	raft.SnapshotStore
	log *Log
}

// List implements raft.SnapshotStore. It omits snapshots with damaged metadata.
func (s snapshotStore) List() ([]*raft.SnapshotMeta, error) {
	all, err := s.SnapshotStore.List()
	return slices.DeleteFunc(all, func(m *raft.SnapshotMeta) bool { return s.log.metadataIntact(m.ID) != nil }), err
}

// Open implements raft.SnapshotStore. It verifies the checksum of the data.
func (s snapshotStore) Open(id string) (*raft.SnapshotMeta, io.ReadCloser, error) {
	meta, r, err := s.SnapshotStore.Open(id)
	if err != nil {
		err = damagedSnapshot(s.log.cfg.SnapshotDir, id, err)
		s.log.cfg.Logger.Error("cannot read snapshot", "err", err)
		select {
		case s.log.snapshotDamagedc <- struct{}{}:
		default:
		}
	}
	return meta, r, err
}

func (s snapshotStore) Create(
	version raft.SnapshotVersion, index, term uint64,
	group raft.Configuration, groupIndex uint64, trans raft.Transport,
) (raft.SnapshotSink, error) {
	sink, err := s.SnapshotStore.Create(version, index, term, group, groupIndex, trans)
	if err != nil {
		return nil, err
	}
	return &snapshotSink{SnapshotSink: sink, log: s.log, last: raft.Log{Index: index, Term: term}}, nil
}

type snapshotSink struct {
	raft.SnapshotSink
	log    *Log
	last   raft.Log // index and term of the last entry in the snapshot
	closed bool
}

// Close completes the snapshot. Raft may call Close twice. The state machine
// already includes a snapshot whose entries are in the log. A snapshot from the
// leader becomes part of the state machine with the call of Restored.
func (s *snapshotSink) Close() error {
	if err := s.SnapshotSink.Close(); err != nil || s.closed {
		return err
	}
	s.closed = true
	if err := s.log.writeMetadataSum(s.ID()); err != nil {
		s.log.cfg.Logger.Warn("cannot write the checksum of snapshot metadata", "id", s.ID(), "err", err)
	}
	if last, err := s.log.LastIndex(); err == nil && last >= s.last.Index {
		s.log.snapshot.Store(&s.last)
	} else if !errors.Is(err, wal.ErrClosed) {
		s.log.installed.Store(&s.last)
	}
	return nil
}

// metadataSum is a file in the directory of a snapshot. It contains the CRC-32C
// of the metadata file, as eight hexadecimal digits. The Raft library stores a
// checksum of the data only. A snapshot without the file was written by a
// version without checksums, or the process ended before it wrote the file. Its
// metadata are accepted.
const (
	metadataFile = "meta.json" // written by the Raft library
	metadataSum  = "meta.crc32c"
)

// writeMetadataSum writes the metadataSum of the complete snapshot id.
func (l *Log) writeMetadataSum(id string) error {
	dir := filepath.Join(l.cfg.SnapshotDir, id)
	b, err := os.ReadFile(filepath.Join(dir, metadataFile))
	if err != nil {
		return err
	}
	return atomicfile.WriteFile(filepath.Join(dir, metadataSum), sumText(b), 0o600)
}

// metadataIntact returns an error if the metadata of snapshot id differ from
// their checksum.
func (l *Log) metadataIntact(id string) error {
	dir := filepath.Join(l.cfg.SnapshotDir, id)
	sum, err := os.ReadFile(filepath.Join(dir, metadataSum))
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	b, readErr := os.ReadFile(filepath.Join(dir, metadataFile))
	if err := errors.Join(err, readErr); err != nil {
		return err
	}
	if !bytes.Equal(sum, sumText(b)) {
		return errors.New("the checksum of its metadata differs")
	}
	return nil
}

func sumText(b []byte) []byte { return fmt.Appendf(nil, "%08x", crc32.Checksum(b, castagnoli)) }

// checkMetadata returns an error that describes the snapshots on disk whose
// metadata cannot be read, and which are newer than readable. It returns nil if
// there are none.
func (l *Log) checkMetadata(readable []*raft.SnapshotMeta) (err error) {
	newest := uint64(0)
	if len(readable) > 0 {
		newest = readable[0].Index
	}
	dirs, _ := os.ReadDir(l.cfg.SnapshotDir) // the snapshot store has read the directory before
	for _, dir := range dirs {
		var term, index uint64
		if _, err := fmt.Sscanf(dir.Name(), "%d-%d-", &term, &index); err != nil || index <= newest {
			continue
		}
		reason := cmp.Or(l.metadataIntact(dir.Name()), errors.New("its metadata cannot be read"))
		err = errors.Join(err, damagedSnapshot(l.cfg.SnapshotDir, dir.Name(), reason))
	}
	return err
}

func damagedSnapshot(dir, id string, reason error) error {
	return fmt.Errorf("%w: snapshot %s: %w", ErrDamaged, filepath.Join(dir, id), reason)
}
