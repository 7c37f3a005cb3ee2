// SPDX-License-Identifier: MPL-2.0

package raftstore

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"time"

	"github.com/hashicorp/raft"
	"golang.org/x/sys/unix"

	"github.com/wanfed/wanfed/resource"
	"github.com/wanfed/wanfed/resource/memory"
)

// ErrRestoring says that a snapshot is being restored already.
var ErrRestoring = errors.New("another snapshot is being restored")

const (
	spoolPattern = "restore-*.tmp" // in the store's directory
	// indexSlack is room for entries that are appended while a restore prepares.
	indexSlack = 1 << 20
	// copies of the data that a restore has on the disk at one time.
	copies = 3
)

// Restored says what a restore did.
type RestoreResult struct {
	// Index is the version, and the store index, of all that was restored.
	Index  uint64
	Totals memory.SnapshotTotals
}

// restoring is a restore that Raft does.
type restoring struct {
	index uint64        // of Raft's snapshot
	donec chan struct{} // closed when Raft has answered
}

// Restore replaces the whole state of the group by the snapshot that m and data are, once all of it has been read and found
// good: an ErrInvalid says why not, and then nothing has changed. It blocks until a majority has the new state. Watches
// end with resource.ErrWatchReset, and what runs while leading begins anew. Only the leader can: resource.ErrNotLeader. An
// ErrUnknownOutcome says that it was lost, or ctx ended, on the way: then the state is the old one or the new one.
//
// Everything restored gets one new version and index, see nextIndex.
func (s *Store) Restore(ctx context.Context, m Manifest, data io.Reader) (RestoreResult, error) {
	if err := m.check(); err != nil {
		return RestoreResult{}, err
	}
	if !s.restoreMu.TryLock() {
		return RestoreResult{}, ErrRestoring
	}
	unlock := true
	defer func() {
		if unlock {
			s.restoreMu.Unlock()
		}
	}()
	if _, err := s.leadTerm(ctx); err != nil {
		return RestoreResult{}, fmt.Errorf("restore snapshot: %w", err)
	}
	in, totals, err := s.spool(m, data)
	if err != nil {
		return RestoreResult{}, err
	}
	defer dropSpool(in)
	index := s.nextIndex(totals.Index)
	out, size, err := s.rebase(in, index)
	if err != nil {
		return RestoreResult{}, err
	}
	if err := ctx.Err(); err != nil {
		dropSpool(out)
		return RestoreResult{}, err
	}
	unlock = false
	if err := s.restore(ctx, index, size, out, s.restoreMu.Unlock); err != nil {
		return RestoreResult{}, fmt.Errorf("restore snapshot: %w", err)
	}
	s.log.Info("snapshot restored", "index", index, "resources", totals.Resources, "was", totals.Index)
	return RestoreResult{Index: index, Totals: totals}, nil
}

// nextIndex is the index of a restore: above all that this group, and the one of which the snapshot is, has ever had. Of the
// latter nobody knows, if it is gone; but its indexes are below the microseconds since 1970 as well, since no group writes a
// million entries a second for long. So no version, and no index of the primary, ever means two different things, and
// whoever compares them, a compare-and-swap or a secondary, finds out.
func (s *Store) nextIndex(saved uint64) uint64 {
	now := uint64(max(time.Now().UnixMicro(), 0))
	return max(now, saved+1, s.raft.LastIndex()+indexSlack)
}

// spool stores data in a file, removed from the directory already or not, and checks it.
func (s *Store) spool(m Manifest, data io.Reader) (_ *os.File, totals memory.SnapshotTotals, err error) {
	if err := s.checkRoom(m.Size); err != nil {
		return nil, totals, err
	}
	f, err := os.CreateTemp(s.cfg.Dir, spoolPattern)
	if err != nil {
		return nil, totals, fmt.Errorf("store the snapshot: %w", err)
	}
	defer func() {
		if err != nil {
			dropSpool(f)
		}
	}()
	in := &summing{r: io.LimitReader(data, m.Size+1), sum: sha256.New()}
	if _, err := io.Copy(f, in); err != nil {
		return nil, totals, fmt.Errorf("store the snapshot: %w", err)
	}
	if sum := hex.EncodeToString(in.sum.Sum(nil)); in.n == m.Size && sum != m.SHA256 {
		return nil, totals, fmt.Errorf("%w snapshot: it is damaged: the data's SHA-256 is %s, not %s as its manifest says", resource.ErrInvalid, sum, m.SHA256)
	}
	if _, err := f.Seek(0, io.SeekStart); err != nil {
		return nil, totals, err
	}
	totals, err = checkData(f, m)
	return f, totals, err
}

// checkRoom returns an error if the disk has no room for what a restore writes.
func (s *Store) checkRoom(size int64) error {
	var st unix.Statfs_t
	if err := unix.Statfs(s.cfg.Dir, &st); err != nil {
		return fmt.Errorf("data dir %s: %w", s.cfg.Dir, err)
	}
	if free := st.Bavail * uint64(st.Bsize); free/copies < uint64(size) {
		return fmt.Errorf("data dir %s has room for %d bytes, and to restore %d takes %d times as many", s.cfg.Dir, free, size, copies)
	}
	return nil
}

func (s *Store) rebase(in *os.File, index uint64) (_ *os.File, size int64, err error) {
	out, err := os.CreateTemp(s.cfg.Dir, spoolPattern)
	if err != nil {
		return nil, 0, fmt.Errorf("store the snapshot: %w", err)
	}
	defer func() {
		if err != nil {
			dropSpool(out)
		}
	}()
	if _, err := in.Seek(0, io.SeekStart); err != nil {
		return nil, 0, err
	}
	if err := s.state.Rebase(out, in, index); err != nil {
		return nil, 0, fmt.Errorf("store the snapshot: %w", err)
	}
	if size, err = out.Seek(0, io.SeekCurrent); err != nil {
		return nil, 0, err
	}
	_, err = out.Seek(0, io.SeekStart)
	return out, size, err
}

// dropSpool is called with files that nobody reads any more.
func dropSpool(f *os.File) {
	_ = f.Close()
	_ = os.Remove(f.Name())
}

// restore has Raft do it. Once it has begun, neither ctx nor Close stops it; file and lock are given up when it has ended.
func (s *Store) restore(ctx context.Context, index uint64, size int64, file *os.File, unlock func()) error {
	r := &restoring{index: index + 1, donec: make(chan struct{})}
	done := func() {
		close(r.donec)
		s.restoring.Store(nil)
		dropSpool(file)
		unlock()
	}
	term := s.raft.CurrentTerm()
	if err := s.unproven.mark(r.index, term); err != nil {
		done()
		return err
	}
	s.restoring.Store(r)
	begun := false
	_, err := s.call(ctx, func() raft.Future {
		begun = true
		defer done()
		meta := &raft.SnapshotMeta{Version: raft.SnapshotVersionMax, Index: index, Term: term, Size: size}
		err := s.raft.Restore(meta, file, 0)
		switch {
		case err == nil, s.raft.LastIndex() < r.index: // committed; or never begun
			err = errors.Join(err, s.unproven.settle())
		}
		return answered{err}
	})
	if errors.Is(err, errRefused) && !begun {
		done()
		return errors.Join(err, s.unproven.settle())
	}
	return s.restoreError(err, r.index)
}

// restoreError says in our errors what became of a restore.
func (s *Store) restoreError(err error, index uint64) error {
	switch {
	case err == nil:
		return nil
	case s.restoring.Load() != nil, s.raft.LastIndex() >= index: // under way, or done here and perhaps nowhere else
		return fmt.Errorf("%w: %w", resource.ErrUnknownOutcome, err)
	case errors.Is(err, raft.ErrNotLeader), errors.Is(err, raft.ErrLeadershipTransferInProgress):
		return resource.ErrNotLeader
	}
	return err
}

// answered is the future of a call that has ended.
type answered struct{ err error }

func (a answered) Error() error { return a.err }

// awaitRestore returns when Raft can be stopped: while it restores a snapshot of ours it would panic.
func (s *Store) awaitRestore() {
	r := s.restoring.Load()
	if r == nil || s.raft == nil {
		return
	}
	tick := time.NewTicker(10 * time.Millisecond) // the library does not say when it is done with this step
	defer tick.Stop()
	for s.raft.LastIndex() < r.index {
		select {
		case <-r.donec:
			return
		case <-tick.C:
		}
	}
}

// removeSpools removes what a process that was killed left of snapshots it was to restore.
func removeSpools(dir string) error {
	all, err := filepath.Glob(filepath.Join(dir, spoolPattern))
	if err != nil {
		return err
	}
	for _, path := range all {
		if err := os.Remove(path); err != nil {
			return fmt.Errorf("remove torn snapshot: %w", err)
		}
	}
	return nil
}
