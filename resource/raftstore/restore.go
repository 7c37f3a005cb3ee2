// SPDX-License-Identifier: MPL-2.0

package raftstore

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"sync"
	"sync/atomic"
	"time"

	"github.com/hashicorp/raft"
	"golang.org/x/sys/unix"

	"github.com/wanfed/wanfed/resource"
	"github.com/wanfed/wanfed/resource/memory"
)

// ErrRestoring is returned by Restore while another snapshot is being restored.
var ErrRestoring = errors.New("another snapshot is being restored")

const (
	spoolPattern = "restore-*.tmp" // in the store's directory
	// indexSlack is more than the number of entries that are appended while a
	// restore is prepared.
	indexSlack = 1 << 20
	// restoreCopies is the number of copies of the data that a restore has on
	// disk at once.
	restoreCopies = 3
)

// Snapshot is the state at one moment. It keeps that state in memory as long as
// it is referenced.
type Snapshot struct {
	// Index is the store index of the last change in the snapshot. Term is the
	// Raft term of the leader.
	Index, Term uint64
	state       *memory.Snapshot
}

// Snapshot returns the present state, with everything that was acknowledged
// before the call. It blocks for a round trip to a majority. On another server
// than the leader, it fails with resource.ErrNotLeader.
func (s *Store) Snapshot(ctx context.Context) (*Snapshot, error) {
	if err := s.checkFresh(ctx, resource.Strong); err != nil {
		return nil, fmt.Errorf("save snapshot: %w", err)
	}
	term, state := s.raft.CurrentTerm(), s.state.Snapshot()
	return &Snapshot{Index: state.Index(), Term: term, state: state}, nil
}

// WriteTo writes the data of a snapshot file.
func (s *Snapshot) WriteTo(w io.Writer) (int64, error) { return s.state.WriteTo(w) }

// RestoreResult describes a restore.
type RestoreResult struct {
	// Index is the store index, and the version, of everything that was
	// restored.
	Index  uint64
	Totals memory.SnapshotTotals
}

// restorer restores snapshots that an operator sends.
type restorer struct {
	*calls
	leadership *leadership
	dir        string
	raft       *raft.Raft
	state      *memory.State
	guard      *snapshotGuard
	logger     *slog.Logger

	mu     sync.Mutex // held while a snapshot is restored
	active atomic.Pointer[restore]
}

// restore is a restore that Raft performs.
type restore struct {
	index uint64        // of Raft's snapshot
	donec chan struct{} // closed when Raft has returned
}

// Restore replaces the whole state of the group by the snapshot of m and data.
// It first reads and checks all of data. After a resource.ErrInvalid, nothing
// has changed. It blocks until a majority has the new state. Watches end with
// resource.ErrWatchReset, and RunWhileLeader calls its function again.
//
// Everything restored gets one new version and index (see nextIndex). On
// another server than the leader, Restore fails with resource.ErrNotLeader.
// Restore returns resource.ErrUnknownOutcome if leadership was lost or ctx
// ended. The state is then the old state or the new state.
func (r *restorer) Restore(ctx context.Context, m Manifest, data io.Reader) (RestoreResult, error) {
	if err := m.check(); err != nil {
		return RestoreResult{}, err
	}
	if !r.mu.TryLock() {
		return RestoreResult{}, ErrRestoring
	}
	unlock := true
	defer func() {
		if unlock {
			r.mu.Unlock()
		}
	}()
	if _, err := r.leadership.leaderTerm(ctx); err != nil {
		return RestoreResult{}, fmt.Errorf("restore snapshot: %w", err)
	}
	in, totals, err := r.spool(m, data)
	if err != nil {
		return RestoreResult{}, err
	}
	defer removeSpool(in)
	index := r.nextIndex(totals.Index)
	out, size, err := r.rebase(in, index)
	if err != nil {
		return RestoreResult{}, err
	}
	if err := ctx.Err(); err != nil {
		removeSpool(out)
		return RestoreResult{}, err
	}
	unlock = false
	if err := r.install(ctx, index, size, out, r.mu.Unlock); err != nil {
		return RestoreResult{}, fmt.Errorf("restore snapshot: %w", err)
	}
	r.logger.Info("snapshot restored", "index", index, "count", totals.Resources, "snapshot_index", totals.Index)
	return RestoreResult{Index: index, Totals: totals}, nil
}

// nextIndex returns the index of a restore. It is above every index that this
// group and the group of the snapshot have ever had. The group of the snapshot
// may no longer exist. Its indexes are also below the number of microseconds
// since 1970, because a group cannot write a million entries per second for
// long. Therefore a version or an index never refers to two states. A
// compare-and-swap, or a secondary that compares them, notices the restore.
func (r *restorer) nextIndex(saved uint64) uint64 {
	now := uint64(max(time.Now().UnixMicro(), 0))
	return max(now, saved+1, r.raft.LastIndex()+indexSlack)
}

// spool stores data in a temporary file, and checks it.
func (r *restorer) spool(m Manifest, data io.Reader) (_ *os.File, totals memory.SnapshotTotals, err error) {
	if err := r.checkSpace(m.Size); err != nil {
		return nil, totals, err
	}
	f, err := os.CreateTemp(r.dir, spoolPattern)
	if err != nil {
		return nil, totals, fmt.Errorf("store the snapshot: %w", err)
	}
	defer func() {
		if err != nil {
			removeSpool(f)
		}
	}()
	in := &summer{r: io.LimitReader(data, m.Size+1), sum: sha256.New()}
	if _, err := io.Copy(f, in); err != nil {
		return nil, totals, fmt.Errorf("store the snapshot: %w", err)
	}
	if sum := hex.EncodeToString(in.sum.Sum(nil)); in.n == m.Size && sum != m.SHA256 {
		return nil, totals, checksumError(sum, m)
	}
	if _, err := f.Seek(0, io.SeekStart); err != nil {
		return nil, totals, err
	}
	totals, err = checkData(f, m)
	return f, totals, err
}

// checkSpace returns an error if the disk has too little space for a restore.
func (r *restorer) checkSpace(size int64) error {
	var st unix.Statfs_t
	if err := unix.Statfs(r.dir, &st); err != nil {
		return fmt.Errorf("data dir %s: %w", r.dir, err)
	}
	if free := st.Bavail * uint64(st.Bsize); free/restoreCopies < uint64(size) {
		return fmt.Errorf("data dir %s has %d bytes free, and a restore of %d bytes takes %d times as many",
			r.dir, free, size, restoreCopies)
	}
	return nil
}

// rebase writes the snapshot with its new index to a temporary file.
func (r *restorer) rebase(in *os.File, index uint64) (_ *os.File, size int64, err error) {
	out, err := os.CreateTemp(r.dir, spoolPattern)
	if err != nil {
		return nil, 0, fmt.Errorf("store the snapshot: %w", err)
	}
	defer func() {
		if err != nil {
			removeSpool(out)
		}
	}()
	if _, err := in.Seek(0, io.SeekStart); err != nil {
		return nil, 0, err
	}
	if err := r.state.Rebase(out, in, index); err != nil {
		return nil, 0, fmt.Errorf("store the snapshot: %w", err)
	}
	if size, err = out.Seek(0, io.SeekCurrent); err != nil {
		return nil, 0, err
	}
	_, err = out.Seek(0, io.SeekStart)
	return out, size, err
}

func removeSpool(f *os.File) {
	_ = f.Close()
	_ = os.Remove(f.Name())
}

// install makes Raft restore the snapshot in file. Once Raft has begun, neither
// ctx nor Close stops it. The file is removed, and unlock called, when Raft has
// returned.
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
	begun := false
	_, err := r.do(ctx, func() raft.Future {
		begun = true
		defer done()
		meta := &raft.SnapshotMeta{Version: raft.SnapshotVersionMax, Index: index, Term: term, Size: size}
		err := r.raft.Restore(meta, file, 0)
		if err == nil || r.raft.LastIndex() < active.index { // committed, or never begun
			err = errors.Join(err, r.guard.settle())
		}
		return completed{err}
	})
	if errors.Is(err, errRefused) && !begun {
		done()
		return errors.Join(err, r.guard.settle())
	}
	switch {
	case err == nil:
		return nil
	case r.active.Load() != nil, r.raft.LastIndex() >= active.index: // in progress, or done on this server and perhaps on no other
		return fmt.Errorf("%w: %w", resource.ErrUnknownOutcome, err)
	case errors.Is(err, raft.ErrNotLeader), errors.Is(err, raft.ErrLeadershipTransferInProgress):
		return resource.ErrNotLeader
	}
	return err
}

// completed is the future of a call that has returned.
type completed struct{ err error }

func (c completed) Error() error { return c.err }

// awaitRestore returns when Raft can be stopped. Raft would panic if it were
// stopped while it restores a snapshot.
func (r *restorer) awaitRestore() {
	if r == nil {
		return
	}
	active := r.active.Load()
	if active == nil {
		return
	}
	tick := time.NewTicker(10 * time.Millisecond) // the library has no event for the end of this step
	defer tick.Stop()
	for r.raft.LastIndex() < active.index {
		select {
		case <-active.donec:
			return
		case <-tick.C:
		}
	}
}
