// SPDX-License-Identifier: MPL-2.0

package raftstore

import (
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"

	"github.com/hashicorp/raft"

	"github.com/wanfed/wanfed/internal/atomicfile"
	"github.com/wanfed/wanfed/resource/raftstore/raftlog"
)

// uncommittedFile is a file in the store's directory, with index and term of a
// snapshot that may not be committed.
const uncommittedFile = "unproven"

// snapshotGuard checks the entries and snapshots that a leader sends, before
// Raft receives them.
//
// The guard detects the loss of a restored snapshot. A snapshot that an operator
// restores on the leader, or that a leader sends, is committed only when a majority
// has it. If the leader fails earlier, the other servers may continue without the
// snapshot. Raft would let this server follow them, but would never apply their
// entries, because the index of the snapshot is higher. The guard therefore records
// such a snapshot on disk until it is committed. It fails the store if the group
// does not have the snapshot.
//
// It also keeps snapshots from Raft that this server does not need (see
// raftlog.Log.Covers).
type snapshotGuard struct {
	node   string
	path   string
	log    *raftlog.Log
	term   func() uint64 // Raft's current term
	fail   func(error)
	logger *slog.Logger

	mu          sync.Mutex // held while the file changes
	uncommitted atomic.Pointer[raft.Log]
}

// open reads the file that an earlier process left in dir.
func (g *snapshotGuard) open(dir string) error {
	g.path = filepath.Join(dir, uncommittedFile)
	b, err := os.ReadFile(g.path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	at := new(raft.Log)
	if n, err := fmt.Sscanf(string(b), "%d %d\n", &at.Index, &at.Term); n != 2 || err != nil {
		return fmt.Errorf("file %s does not hold an index and a term", g.path)
	}
	if g.log.SnapshotIndex() < at.Index { // the process ended before the snapshot was written
		return g.settle()
	}
	g.uncommitted.Store(at)
	return nil
}

// pending reports whether a snapshot here may not be committed.
func (g *snapshotGuard) pending() bool { return g.uncommitted.Load() != nil }

// mark is called before the write of a snapshot that may not be committed.
func (g *snapshotGuard) mark(index, term uint64) error {
	g.mu.Lock()
	defer g.mu.Unlock()
	if err := atomicfile.WriteFile(g.path, fmt.Appendf(nil, "%d %d\n", index, term), 0o600); err != nil {
		return err
	}
	g.uncommitted.Store(&raft.Log{Index: index, Term: term})
	return nil
}

// settle is called when the snapshot is committed, or was not written.
func (g *snapshotGuard) settle() error {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.uncommitted.Store(nil)
	if err := os.Remove(g.path); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return atomicfile.SyncDir(filepath.Dir(g.path))
}

// observe checks a call of the leader of a term. The call sends entries or a
// snapshot up to, or after, index. It contains the commit index of the leader.
// observe reports whether that leader does not have the uncommitted snapshot
// and will never have it.
func (g *snapshotGuard) observe(at *raft.Log, term, index, committed uint64) (lost bool, err error) {
	switch {
	case term < at.Term:
		return false, nil
	case committed >= at.Index && index >= at.Index:
		return false, g.settle()
	}
	return g.log.HasSnapshot(at.Index) && term > at.Term && index < at.Index, nil
}

// lostError is the error of a store that failed because its uncommitted
// snapshot was lost.
func (g *snapshotGuard) lostError(at *raft.Log) error {
	return fmt.Errorf("the snapshot restored here at index %d never reached a majority, and the datacenter continued "+
		"without it; remove this server from the Raft group (on another one: wanfed operator raft remove-peer %s "+
		"--force), remove its data dir, and start it again", at.Index, g.node)
}

// checkEntries checks entries of a leader before Raft receives them.
func (g *snapshotGuard) checkEntries(req *raft.AppendEntriesRequest) error {
	at := g.uncommitted.Load()
	if at == nil || isHeartbeat(req) { // a heartbeat has nothing about the log
		return nil
	}
	lost, err := g.observe(at, req.Term, req.PrevLogEntry, req.LeaderCommitIndex)
	if lost {
		err = g.lostError(at)
	}
	if err != nil {
		g.fail(err)
	}
	return err
}

// checkInstall reports whether a snapshot must not reach Raft, and why it
// cannot be installed. Raft itself rejects a snapshot of an earlier term.
func (g *snapshotGuard) checkInstall(req *raft.InstallSnapshotRequest) (handled bool, err error) {
	if req.Term < g.term() {
		return false, nil
	}
	if at := g.uncommitted.Load(); at != nil {
		lost, err := g.observe(at, req.Term, req.LastLogIndex, 0)
		if lost {
			err = g.lostError(at)
			g.fail(err)
		}
		if err != nil {
			return true, err
		}
	}
	if g.log.Covers(req.LastLogIndex, req.LastLogTerm) {
		g.logger.Debug("raft snapshot not needed", "index", req.LastLogIndex)
		return true, nil
	}
	last, err := g.log.LastIndex()
	if err != nil {
		return true, err
	}
	if last > req.LastLogIndex {
		// The log has uncommitted entries. Their number exceeds the number of
		// entries that the leader kept before its snapshot.
		err := fmt.Errorf("the log has entries up to %d that are not the leader's, whose snapshot covers %d; %s",
			last, req.LastLogIndex, removeDirRemedy)
		g.fail(err)
		return true, err
	}
	if err := g.mark(req.LastLogIndex, req.Term); err != nil {
		return true, err
	}
	return false, nil
}
