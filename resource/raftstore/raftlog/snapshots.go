// SPDX-License-Identifier: MPL-2.0

package raftlog

import (
	"errors"
	"fmt"

	"github.com/hashicorp/raft"
	wal "github.com/hashicorp/raft-wal"
)

// GetLog implements raft.LogStore. For the last entry that the newest snapshot
// covers, it returns an entry that has only index and term.
//
// A server that installed a snapshot of entry S has an empty log, and then
// entries from S+1 on. A leader that did not receive the response for S+1
// refers to S first. Raft looks for S in the log alone, and would refuse the
// leader's entries. Raft uses nothing but index and term of S: to send or apply
// S, it would need S-1, which is not in the log.
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

// Covers reports whether log and snapshot have everything up to the entry with
// that index and term, which is the last one of a leader's snapshot. The
// entries of a snapshot are committed, so the same last entry implies the same
// earlier entries.
//
// Raft installs a snapshot even if the log has entries after it. Raft then
// deletes these entries, though they may be acknowledged, and stops making
// progress. A snapshot that is covered must therefore not reach Raft.
func (l *Log) Covers(index, term uint64) bool {
	if l.SnapshotIndex() >= index {
		return true
	}
	var e raft.Log
	return l.GetLog(index, &e) == nil && e.Term == term
}

// SnapshotIndex returns the last index that the newest snapshot covers, 0
// without a snapshot.
func (l *Log) SnapshotIndex() uint64 {
	if s := l.snapshot.Load(); s != nil {
		return s.Index
	}
	return 0
}

// HasSnapshot reports whether a snapshot that covers index is on disk.
func (l *Log) HasSnapshot(index uint64) bool {
	if s := l.installed.Load(); s != nil && s.Index >= index {
		return true
	}
	return l.SnapshotIndex() >= index
}

// Restored must be called when the state machine has restored a snapshot.
func (l *Log) Restored() {
	if s := l.installed.Swap(nil); s != nil {
		l.snapshot.Store(s)
	}
}

// openSnapshots finds the newest snapshot that can be read, and deletes the log
// if that snapshot covers it. A process may end after it stored a leader's
// snapshot and before it emptied the log. raft-wal would then refuse the entry
// after the snapshot.
func (l *Log) openSnapshots() error {
	all, err := l.cfg.Snapshots.List()
	if err != nil {
		return err
	}
	for _, meta := range all {
		_, r, err := l.cfg.Snapshots.Open(meta.ID) // verifies the checksum
		if err != nil {
			continue // Raft logs the error, and also tries the next snapshot
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

// Snapshots returns Config.Snapshots for Raft. Through it, the Log notices
// every snapshot that Raft stores.
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
	last   raft.Log // the last entry that the snapshot covers: index and term
	closed bool
}

// Close completes the snapshot. Raft may call it twice. A snapshot of entries
// in the log counts immediately. A snapshot from the leader counts when the
// state machine has restored it.
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
