// SPDX-License-Identifier: MPL-2.0

package raftstore

import (
	"errors"
	"fmt"
	"sync/atomic"

	"github.com/hashicorp/raft"
	wal "github.com/hashicorp/raft-wal"
)

// history is where log and snapshots meet. raft-wal takes no entry after a gap, so that Raft empties it when it installs a
// snapshot that came from the leader. That leaves two faults, which history mends.
//
// The first: such a server has entries from S+1 on, and a snapshot of S. Asked whether it has entry S, as it is when the
// leader did not hear that S+1 was stored, Raft looks into the log alone, says no, gets the snapshot again, forgets the
// entries but not that it had them, and never gets any further. See GetLog.
//
// The second: a process that ends between storing the snapshot and emptying the log leaves an older log behind a newer
// snapshot, and raft-wal refuses the entry after the snapshot, for ever. See dropCovered.
type history struct {
	*wal.WAL
	newest atomic.Pointer[raft.Log] // index and term of the last snapshot stored
}

var _ raft.MonotonicLogStore = (*history)(nil)

// GetLog also knows the last entry that the newest snapshot covers, though nothing but index and term: all that Raft asks
// about it. To replicate or apply that entry, Raft would first need the one before it, or after it, and that is not there.
func (h *history) GetLog(index uint64, log *raft.Log) error {
	err := h.WAL.GetLog(index, log)
	if !errors.Is(err, raft.ErrLogNotFound) {
		return err
	}
	if s := h.newest.Load(); s != nil && s.Index == index {
		*log = raft.Log{Index: s.Index, Term: s.Term, Type: raft.LogNoop}
		return nil
	}
	return err
}

// open takes note of the newest snapshot, and makes the log fit it.
func (h *history) open(snaps raft.SnapshotStore) error {
	all, err := snaps.List()
	if err != nil || len(all) == 0 {
		return err
	}
	h.newest.Store(&raft.Log{Index: all[0].Index, Term: all[0].Term})
	return h.dropCovered(snaps, all[0])
}

// dropCovered empties a log that ends before the newest snapshot does, as Raft would have. If the snapshot is damaged, the
// log is left to an older one.
func (h *history) dropCovered(snaps raft.SnapshotStore, newest *raft.SnapshotMeta) error {
	first, err := h.FirstIndex()
	if err != nil {
		return err
	}
	last, err := h.LastIndex()
	if err != nil {
		return err
	}
	if last == 0 || last >= newest.Index {
		return nil
	}
	_, r, err := snaps.Open(newest.ID) // compares its checksum
	if err != nil {
		return nil // Raft says why, and tries the next
	}
	if err := errors.Join(r.Close(), h.DeleteRange(first, last)); err != nil {
		return fmt.Errorf("empty the log that snapshot %s covers: %w", newest.ID, err)
	}
	return nil
}

// snapshots tells history of each snapshot that is stored.
type snapshots struct {
	raft.SnapshotStore
	h *history
}

func (s snapshots) Create(version raft.SnapshotVersion, index, term uint64, group raft.Configuration, groupIndex uint64, trans raft.Transport) (raft.SnapshotSink, error) {
	sink, err := s.SnapshotStore.Create(version, index, term, group, groupIndex, trans)
	if err != nil {
		return nil, err
	}
	return &notedSink{SnapshotSink: sink, h: s.h, covers: raft.Log{Index: index, Term: term}}, nil
}

type notedSink struct {
	raft.SnapshotSink
	h      *history
	covers raft.Log
}

func (s *notedSink) Close() error {
	err := s.SnapshotSink.Close()
	if err == nil {
		s.h.newest.Store(&s.covers)
	}
	return err
}
