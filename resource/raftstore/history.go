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
// snapshot that came from the leader. That leaves three faults, which history mends, with the transport.
//
// The first: such a server has entries from S+1 on, and a snapshot of S. Asked whether it has entry S, as it is when the
// leader did not hear that S+1 was stored, Raft looks into the log alone and says no. See GetLog.
//
// The second: Raft installs a snapshot of S also if it has entries after S, sent perhaps by a leader that was deposed
// meanwhile. It forgets these entries, acknowledged as they may be, but not that it had them, and never gets any further.
// See covers.
//
// The third: a process that ends between storing the snapshot and emptying the log leaves an older log behind a newer
// snapshot, and raft-wal refuses the entry after the snapshot, for ever. See dropCovered.
type history struct {
	*wal.WAL
	disk   *disk
	newest atomic.Pointer[raft.Log] // index and term of the newest snapshot that is part of the state
	stored atomic.Pointer[raft.Log] // of a snapshot from the leader that is on disk, and not restored yet
}

var _ raft.MonotonicLogStore = (*history)(nil)

// StoreLogs is the log's, as far as there is room.
func (h *history) StoreLogs(logs []*raft.Log) error { return h.disk.append(logs) }

// DeleteRange is the log's too.
func (h *history) DeleteRange(first, last uint64) error { return h.disk.cut(first, last) }

// StoreLog is StoreLogs for one entry.
func (h *history) StoreLog(log *raft.Log) error { return h.StoreLogs([]*raft.Log{log}) }

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

// covers says whether this server has, in log or snapshot, everything that a snapshot of a leader covers. What a snapshot
// covers is committed, so that the same entry at its end means the same entries before.
func (h *history) covers(index, term uint64) bool {
	if s := h.newest.Load(); s != nil && s.Index >= index {
		return true
	}
	var e raft.Log
	return h.GetLog(index, &e) == nil && e.Term == term
}

// covered is the index of the newest snapshot; 0 if there is none.
func (h *history) covered() uint64 {
	if s := h.newest.Load(); s != nil {
		return s.Index
	}
	return 0
}

// stores says whether a snapshot that covers index is on disk.
func (h *history) stores(index uint64) bool {
	if s := h.stored.Load(); s != nil && s.Index >= index {
		return true
	}
	return h.covered() >= index
}

// open takes note of the newest snapshot that is whole, and makes the log fit it.
func (h *history) open(snaps raft.SnapshotStore) error {
	all, err := snaps.List()
	if err != nil {
		return err
	}
	for _, meta := range all {
		_, r, err := snaps.Open(meta.ID) // compares its checksum
		if err != nil {
			continue // Raft says why, and tries the next, as we do
		}
		h.newest.Store(&raft.Log{Index: meta.Index, Term: meta.Term})
		return errors.Join(r.Close(), h.dropCovered(meta))
	}
	return nil
}

// dropCovered empties a log that ends before the newest snapshot does, as Raft would have.
func (h *history) dropCovered(newest *raft.SnapshotMeta) error {
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
	if err := h.DeleteRange(first, last); err != nil {
		return fmt.Errorf("empty the log that snapshot %s covers: %w", newest.ID, err)
	}
	return nil
}

// note remembers a snapshot that is on disk. It counts at once if it is of what the log has; else restored makes it count.
func (h *history) note(covers *raft.Log) {
	if last, err := h.LastIndex(); err == nil && last >= covers.Index {
		h.newest.Store(covers)
	} else {
		h.stored.Store(covers)
	}
}

// restored says that the state is now that of the last snapshot noted.
func (h *history) restored() {
	if s := h.stored.Swap(nil); s != nil {
		h.newest.Store(s)
	}
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
	noted  bool
}

// Close may be called twice.
func (s *notedSink) Close() error {
	err := s.SnapshotSink.Close()
	if err == nil && !s.noted {
		s.noted = true
		s.h.note(&s.covers)
	}
	return err
}
