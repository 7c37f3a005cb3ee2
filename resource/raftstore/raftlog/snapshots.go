// SPDX-License-Identifier: MPL-2.0

package raftlog

import (
	"errors"
	"fmt"

	"github.com/hashicorp/raft"
	wal "github.com/hashicorp/raft-wal"
)

// GetLog implements raft.LogStore. For the last entry S of the newest snapshot,
// GetLog returns an entry that has only an index and a term.
//
// After a server installs a snapshot, its log is empty and then begins with
// entry S+1. A leader that did not receive the response for S+1 refers to S
// when it sends S+1 again. Raft searches only the log for S, and would refuse
// the leader's entries. Raft uses only the index and the term of S. To send or
// apply S, Raft would need S-1, which is not in the log.
func (l *Log) GetLog(index uint64, log *raft.Log) error {
	err := l.WAL.GetLog(index, log)
	if !errors.Is(err, raft.ErrLogNotFound) {
		return err
	}
	if s := l.snapshot.Load(); s != nil && s.Index == index {
		*log = raft.Log{Index: s.Index, Term: s.Term, Type: raft.LogNoop}
		return nil
	}
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
	}
}

// openSnapshots finds the newest readable snapshot, and deletes the log if the
// snapshot covers it. Such a log exists if the process ended after Raft stored
// a leader's snapshot and before Raft emptied the log. raft-wal would refuse
// the next entry, because the log has a gap before that entry.
func (l *Log) openSnapshots() error {
	all, err := l.cfg.Snapshots.List()
	if err != nil {
		return err
	}
	for _, meta := range all {
		_, r, err := l.cfg.Snapshots.Open(meta.ID) // verifies the checksum
		if err != nil {
			continue // Raft logs the error and tries the next snapshot too
		}
		l.snapshot.Store(&raft.Log{Index: meta.Index, Term: meta.Term})
		return errors.Join(r.Close(), l.deleteCovered(meta))
	}
	return nil
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
	if last, err := s.log.LastIndex(); err == nil && last >= s.last.Index {
		s.log.snapshot.Store(&s.last)
	} else if !errors.Is(err, wal.ErrClosed) {
		s.log.installed.Store(&s.last)
	}
	return nil
}
