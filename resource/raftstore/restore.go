// SPDX-License-Identifier: MPL-2.0

package raftstore

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"sync"
	"sync/atomic"
	"time"

	"github.com/hashicorp/raft"

	"github.com/wanfed/wanfed/internal/diskspace"
	"github.com/wanfed/wanfed/resource"
	"github.com/wanfed/wanfed/resource/memory"
)

// ErrRestoring is returned by Restore while another snapshot is being restored.
var ErrRestoring = errors.New("another snapshot is being restored")

const (
	// spoolPattern matches the temporary files in the data directory.
	spoolPattern = "restore-*.tmp"
	// indexSlack is an upper bound of the number of entries that are appended
	// while a restore is prepared.
	indexSlack = 1 << 20
	// restoreCopies is the maximum number of copies of the data that a restore
	// has on disk at once.
	restoreCopies = 3
)

// Snapshot is the state at one moment. A referenced Snapshot keeps that state
// in memory. WriteTo writes the data of a snapshot file.
type Snapshot struct {
	*memory.Snapshot
	Term uint64 // Raft term of the leader
	// Unapplied is the number of entries at the end of the log that the state
	// does not have. It is 0 in a snapshot of the leader.
	Unapplied uint64
}

// Snapshot returns the current state, with everything that was acknowledged
// before the call. Snapshot blocks for a round trip to a majority. It succeeds
// only on the leader; other servers return resource.ErrNotLeader.
func (s *Store) Snapshot(ctx context.Context) (*Snapshot, error) {
	if err := s.checkFresh(ctx, resource.Strong); err != nil {
		return nil, fmt.Errorf("save snapshot: %w", err)
	}
	return &Snapshot{Term: s.raft.CurrentTerm(), Snapshot: s.state.Snapshot()}, nil
}

// SnapshotHere returns the state of this server, which may lack acknowledged
// writes. It needs no leader and does not block. After a start without a
// leader, the state is that of the last snapshot on disk, because Raft applies
// an entry of the log only when a leader has confirmed the entry.
func (s *Store) SnapshotHere() (*Snapshot, error) {
	if err := s.Err(); err != nil {
		return nil, fmt.Errorf("save snapshot: %w", err)
	}
	last, applied := s.raft.LastIndex(), s.raft.AppliedIndex()
	out := &Snapshot{Term: s.raft.CurrentTerm(), Snapshot: s.state.Snapshot()}
	if last > applied {
		out.Unapplied = last - applied
	}
	return out, nil
}

// restorer restores snapshots that an operator sends.
type restorer struct {
	*calls
	leadership *leadership
	dir        string
	raft       *raft.Raft
	state      *memory.State
	guard      *snapshotGuard

	mu     sync.Mutex              // held while a snapshot is restored
	active atomic.Pointer[restore] // nil: none
}

// restore is a restore that Raft performs.
type restore struct {
	index uint64        // index of the snapshot in Raft, which adds 1 to the index in the metadata
	donec chan struct{} // closed when Raft has returned
}

// Restore replaces the whole state of the group with the snapshot that m
// describes and data contains. Restore first reads and checks all data. If it
// returns a resource.ErrInvalid, nothing has changed. Restore blocks until a
// majority has the new state. Watches end with resource.ErrWatchReset, and
// RunWhileLeader calls its function again.
//
// Restore returns the totals of the new state. All restored resources get one
// new version and index, the index of the totals (see nextIndex). Restore
// succeeds only on the leader; other servers return resource.ErrNotLeader. It
// returns resource.ErrUnknownOutcome if leadership was lost or ctx ended. The
// state is then the old or the new state.
func (r *restorer) Restore(ctx context.Context, m Manifest, data io.Reader) (memory.SnapshotTotals, error) {
	var totals memory.SnapshotTotals
	if err := m.check(); err != nil {
		return totals, err
	}
	if !r.mu.TryLock() {
		return totals, ErrRestoring
	}
	unlock := true
	defer func() {
		if unlock {
			r.mu.Unlock()
		}
	}()
	if _, err := r.leadership.leaderTerm(ctx); err != nil {
		return totals, fmt.Errorf("restore snapshot: %w", err)
	}
	in, totals, err := r.receive(m, data)
	if err != nil {
		return totals, err
	}
	defer removeSpool(in)
	index, size := r.nextIndex(totals.Index), int64(0)
	out, err := r.spool(func(f *os.File) (err error) {
		size, err = r.state.Rebase(f, in, index)
		return err
	})
	if err != nil {
		return totals, err
	}
	if err := ctx.Err(); err != nil {
		removeSpool(out)
		return totals, err
	}
	unlock = false
	if err := r.install(ctx, index, size, out, r.mu.Unlock); err != nil {
		return totals, fmt.Errorf("restore snapshot: %w", err)
	}
	r.logger.Info("snapshot restored", "index", index, "count", totals.Resources, "snapshot_index", totals.Index)
	totals.Index = index
	return totals, nil
}

// nextIndex returns the index of a restore. The index is above every index that
// this group and the group of the snapshot have ever had. The group of the
// snapshot may no longer exist. Its indexes are below the number of
// microseconds since 1970, because a group cannot write a million entries per
// second for long. Therefore a version or an index never refers to two states.
// A compare-and-swap with an older version fails, and secondaries detect the
// restore.
func (r *restorer) nextIndex(saved uint64) uint64 {
	now := uint64(max(time.Now().UnixMicro(), 0))
	return max(now, saved+1, r.raft.LastIndex()+indexSlack)
}

// receive stores data in a temporary file and checks the data against m.
func (r *restorer) receive(m Manifest, data io.Reader) (_ *os.File, totals memory.SnapshotTotals, err error) {
	if err := r.checkSpace(m.Size); err != nil {
		return nil, totals, err
	}
	f, err := r.spool(func(f *os.File) error {
		_, err := io.Copy(f, io.LimitReader(data, m.Size+1))
		return err
	})
	if err != nil {
		return nil, totals, err
	}
	if totals, err = checkData(f, m); err == nil {
		_, err = f.Seek(0, io.SeekStart)
	}
	if err != nil {
		removeSpool(f)
	}
	return f, totals, err
}

// checkSpace returns an error if the disk has too little space for a restore.
func (r *restorer) checkSpace(size int64) error {
	free, err := diskspace.Free(r.dir)
	if err != nil {
		return fmt.Errorf("data dir %s: %w", r.dir, err)
	}
	if free/restoreCopies < uint64(size) {
		return fmt.Errorf("data dir %s has %d bytes free, and a restore of %d bytes takes %d times as many",
			r.dir, free, size, restoreCopies)
	}
	return nil
}

// spool creates a temporary file, calls write, and returns the file for
// reading.
func (r *restorer) spool(write func(*os.File) error) (*os.File, error) {
	f, err := os.CreateTemp(r.dir, spoolPattern)
	if err != nil {
		return nil, fmt.Errorf("store the snapshot: %w", err)
	}
	if err = write(f); err == nil {
		_, err = f.Seek(0, io.SeekStart)
	}
	if err != nil {
		removeSpool(f)
		return nil, fmt.Errorf("store the snapshot: %w", err)
	}
	return f, nil
}

func removeSpool(f *os.File) {
	_ = f.Close()
	_ = os.Remove(f.Name())
}

// install makes Raft restore the snapshot in file. After Raft has begun,
// neither ctx nor Close stops the restore. When Raft returns, install removes
// the file and calls unlock.
func (r *restorer) install(ctx context.Context, index uint64, size int64, file *os.File, unlock func()) error {
	active := &restore{index: index + 1, donec: make(chan struct{})}
	done := func() {
		close(active.donec)
		r.active.Store(nil)
		removeSpool(file)
		unlock()
	}
	term := r.raft.CurrentTerm()
	if err := r.guard.mark(active.index, term); err != nil {
		done()
		return err
	}
	r.active.Store(active)
	_, err := r.do(ctx, func() raft.Future {
		defer done()
		meta := &raft.SnapshotMeta{Version: raft.SnapshotVersionMax, Index: index, Term: term, Size: size}
		err := r.raft.Restore(meta, file, 0)
		if err == nil || r.raft.LastIndex() < active.index { // committed, or not begun
			err = errors.Join(err, r.guard.settle())
		}
		return completed{err}
	})
	switch {
	case err == nil:
		return nil
	case errors.Is(err, errRefused):
		done()
		return errors.Join(err, r.guard.settle())
	case r.active.Load() != nil, r.raft.LastIndex() >= active.index: // in progress, or complete on this server
		return fmt.Errorf("%w: %w", resource.ErrUnknownOutcome, err)
	case errors.Is(err, raft.ErrNotLeader), errors.Is(err, raft.ErrLeadershipTransferInProgress):
		return resource.ErrNotLeader
	}
	return err
}

// completed is a raft.Future with a result.
type completed struct{ err error }

func (c completed) Error() error { return c.err }

// awaitRestore waits until Raft can be stopped. Raft panics if it is stopped
// while it restores a snapshot.
func (r *restorer) awaitRestore() {
	if r == nil {
		return
	}
	active := r.active.Load()
	if active == nil {
		return
	}
	tick := time.NewTicker(10 * time.Millisecond) // Raft has no event for the new index
	defer tick.Stop()
	for r.raft.LastIndex() < active.index {
		select {
		case <-active.donec:
			return
		case <-tick.C:
		}
	}
}
