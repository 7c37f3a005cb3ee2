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

// uncommittedFile is a file in the data directory. It contains the index and
// the term of a snapshot that may not be committed.
const uncommittedFile = "unproven"

// snapshotGuard checks the entries and snapshots of a leader before Raft
// receives them.
//
// The guard detects that the group lost a restored snapshot. A snapshot that an
// operator restores on the leader, or that a leader sends, is committed when a
// majority has it. If the leader fails earlier, the other servers may continue
// without the snapshot. This server would then follow them but never apply
// their entries, because the index of the snapshot is higher. Therefore the
// guard records an uncommitted snapshot on disk. It fails the store if the
// group continues without the snapshot.
//
// The guard also rejects snapshots that this server does not need (see
// raftlog.Log.Covers).
type snapshotGuard struct {
	node   string
	path   string // path of uncommittedFile
	log    *raftlog.Log
	term   func() uint64 // returns the current term of Raft
	fail   func(error)
	logger *slog.Logger

	mu          sync.Mutex               // held while the file changes
	uncommitted atomic.Pointer[raft.Log] // index and term of the recorded snapshot; nil: none
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
	snapshot := new(raft.Log)
	if n, err := fmt.Sscanf(string(b), "%d %d\n", &snapshot.Index, &snapshot.Term); n != 2 || err != nil {
		return fmt.Errorf("file %s does not hold an index and a term", g.path)
	}
	if g.log.SnapshotIndex() < snapshot.Index { // the process ended before the snapshot was written
		return g.settle()
	}
	g.uncommitted.Store(snapshot)
	return nil
}

// pending reports whether this server has a snapshot that may not be committed.
func (g *snapshotGuard) pending() bool { return g.uncommitted.Load() != nil }

// mark records a snapshot that may not be committed. It is called before the
// snapshot is written.
func (g *snapshotGuard) mark(index, term uint64) error {
	g.mu.Lock()
	defer g.mu.Unlock()
	if err := atomicfile.WriteFile(g.path, fmt.Appendf(nil, "%d %d\n", index, term), 0o600); err != nil {
		return err
	}
	g.uncommitted.Store(&raft.Log{Index: index, Term: term})
	return nil
}

// settle removes the record of a snapshot that is committed or was not written.
func (g *snapshotGuard) settle() error {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.uncommitted.Store(nil)
	if err := os.Remove(g.path); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return atomicfile.SyncDir(filepath.Dir(g.path))
}

// checkLeader compares the uncommitted snapshot with a call of a leader. The
// leader of term has all entries up to index, and has committed the entries up
// to committed. If the leader has committed the snapshot, checkLeader removes
// the record. If the leader can never have the snapshot, checkLeader fails the
// store and returns an error.
func (g *snapshotGuard) checkLeader(term, index, committed uint64) error {
	snapshot := g.uncommitted.Load()
	switch {
	case snapshot == nil, term < snapshot.Term:
		return nil
	case committed >= snapshot.Index && index >= snapshot.Index:
		return g.settle()
	case !g.log.HasSnapshot(snapshot.Index), term == snapshot.Term, index >= snapshot.Index:
		// The snapshot is not on this disk yet, or the leader still has it or
		// may have it.
		return nil
	}
	err := fmt.Errorf("the snapshot restored here at index %d never reached a majority, and the datacenter continued "+
		"without it; remove this server from the Raft group (on another one: wanfed operator raft remove-peer %s "+
		"--force), remove its data dir, and start it again", snapshot.Index, g.node)
	g.fail(err)
	return err
}

// checkEntries checks the entries of a leader before Raft receives them.
func (g *snapshotGuard) checkEntries(req *raft.AppendEntriesRequest) error {
	if isHeartbeat(req) { // a heartbeat does not describe the log
		return nil
	}
	err := g.checkLeader(req.Term, req.PrevLogEntry, req.LeaderCommitIndex)
	if err != nil {
		g.fail(err)
	}
	return err
}

// checkInstall checks a snapshot of a leader before Raft receives it. handled
// means that the snapshot must not reach Raft. err is the reason if this server
// cannot install the snapshot. Raft itself rejects a snapshot of an earlier
// term.
func (g *snapshotGuard) checkInstall(req *raft.InstallSnapshotRequest) (handled bool, err error) {
	if req.Term < g.term() {
		return false, nil
	}
	if err := g.checkLeader(req.Term, req.LastLogIndex, 0); err != nil {
		return true, err
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
		// The log has uncommitted entries, more than the leader keeps before
		// its snapshot.
		err := fmt.Errorf("the log has entries up to %d that are not the leader's, whose snapshot covers %d; %s",
			last, req.LastLogIndex, removeDirRemedy)
		g.fail(err)
		return true, err
	}
	err = g.mark(req.LastLogIndex, req.Term)
	return err != nil, err
}
