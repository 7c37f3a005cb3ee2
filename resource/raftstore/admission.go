// SPDX-License-Identifier: MPL-2.0

package raftstore

import (
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"

	"github.com/hashicorp/raft"

	"github.com/wanfed/wanfed/internal/atomicfile"
	"github.com/wanfed/wanfed/resource/raftstore/raftlog"
)

// joiningFile is a file in the data directory of a new store. It contains
// admission.base. The file is removed when the server is admitted.
const joiningFile = "joining"

// firstEntries is the number of entries that the first leader of a group
// appends before the group can commit a write: the configuration, the no-op of
// its term and the barrier.
const firstEntries = 3

// errNoVote is the error of a vote request that this server does not send,
// because it may not be a candidate.
var errNoVote = errors.New("this server has no vote: it has just started, or its log may lack entries that it had " +
	"confirmed, and it has not caught up")

// admission keeps a server with a new or outdated data directory out of
// elections. The group may list the server as a voter, because a server of the
// same name was a voter until it lost its disk. Entries that the lost disk had
// acknowledged may be missing on this one. A vote could then elect a leader
// without these entries, and an acknowledged write would be lost. Therefore the
// server neither votes nor becomes a candidate until it is admitted.
//
// base is an upper bound of the indexes that the lost disk had acknowledged.
// When a leader contacts the server for the first time, base rises to the end
// of the log of that leader. The server is admitted when its log has a
// configuration after base that lists it as a voter, because the log then
// contains all entries up to base. The leader therefore removes a voter with a
// new data directory, adds it again without a vote, and gives it a vote when it
// has caught up (see package server/operator).
//
// A server whose data directory is outdated, such as that of a restored machine,
// enters the same state when Store.Rejoin is called.
//
// In a new group no write can be lost. A member of a new group is therefore
// admitted at once: when the first leader contacts it and has no write yet, or
// when Store.Admit is called.
type admission struct {
	node   string
	path   string // path of joiningFile
	fail   func(error)
	logger *slog.Logger
	held   atomic.Bool // see Config.HoldVote

	state atomic.Pointer[chan struct{}] // closed when the server is admitted

	mu   sync.Mutex // held while the file changes, and while state is set
	base uint64
	term uint64 // term of the latest leader whose log base includes
}

// open reads the file of dir, and the entries of log after base. A store
// without the file is admitted.
func (a *admission) open(dir string, log *raftlog.Log) error {
	a.path = filepath.Join(dir, joiningFile)
	admitted := make(chan struct{})
	a.state.Store(&admitted)
	b, err := os.ReadFile(a.path)
	if errors.Is(err, fs.ErrNotExist) {
		close(admitted)
		return nil
	}
	if err == nil {
		a.base, err = strconv.ParseUint(strings.TrimSpace(string(b)), 10, 64)
	}
	if err != nil {
		return fmt.Errorf("read %s: %w", a.path, err)
	}
	first, err := log.FirstIndex()
	if err != nil {
		return err
	}
	last, err := log.LastIndex()
	if err == nil && a.base == 0 && last > 0 { // from an interrupted Bootstrap: no leader has sent the entries
		return a.admit()
	}
	for index := max(first, a.base+1); err == nil && index <= last; index++ {
		var entry raft.Log
		if err = log.GetLog(index, &entry); err == nil {
			err = a.stored(&entry)
		}
	}
	return err
}

// markJoining writes joiningFile with base.
func markJoining(dir string, base uint64) error {
	return atomicfile.WriteFile(filepath.Join(dir, joiningFile), fmt.Appendf(nil, "%d\n", base), 0o600)
}

// admitted returns a channel that is closed when the server is admitted.
func (a *admission) admitted() <-chan struct{} { return *a.state.Load() }

// rejoin ends the admission until the log has a later configuration than index
// base that lists this server as a voter.
func (a *admission) rejoin(base uint64) error {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.base = max(a.base, base)
	if err := markJoining(filepath.Dir(a.path), a.base); err != nil {
		a.fail(err)
		return err
	}
	if !a.joining() {
		admitted := make(chan struct{})
		a.state.Store(&admitted)
	}
	return nil
}

func (a *admission) joining() bool {
	select {
	case <-a.admitted():
		return false
	default:
		return true
	}
}

// admit admits the server. It fails the store if it cannot remove the file.
func (a *admission) admit() error {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.admitLocked()
}

func (a *admission) admitLocked() error {
	if !a.joining() {
		return nil
	}
	err := os.Remove(a.path)
	if err == nil || errors.Is(err, fs.ErrNotExist) {
		err = atomicfile.SyncDir(filepath.Dir(a.path))
	}
	if err != nil {
		err = fmt.Errorf("record the admission to the Raft group: %w", err)
		a.fail(err)
		return err
	}
	close(*a.state.Load())
	a.logger.Info("server may vote")
	return nil
}

// checkEntries is called with each message of a leader before Raft receives the
// message. It raises base at the first message of each leader.
func (a *admission) checkEntries(req *raft.AppendEntriesRequest) (err error) {
	if !a.joining() {
		return nil
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	if isHeartbeat(req) || req.Term <= a.term {
		return nil
	}
	first := a.term == 0 && a.base == 0
	a.term = req.Term
	// In its first message, a leader refers to the last entry of its log.
	base := max(a.base, req.PrevLogEntry, req.LeaderCommitIndex)
	switch {
	case base == a.base && !first:
		return nil
	case base <= firstEntries: // the group is new
		return a.admitLocked()
	}
	a.base = base
	a.logger.Info("server has no vote until it has caught up", "index", base)
	if err := markJoining(filepath.Dir(a.path), base); err != nil {
		a.fail(err)
		return err
	}
	return nil
}

// stored is called with entries that are on disk. It admits the server if one
// of them is a configuration after base that lists the server as a voter.
func (a *admission) stored(logs ...*raft.Log) error {
	if !a.joining() {
		return nil
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	for _, log := range logs {
		if log.Type == raft.LogConfiguration && a.base > 0 && log.Index > a.base &&
			slices.Contains(raft.DecodeConfiguration(log.Data).Servers, voter(a.node)) {
			return a.admitLocked()
		}
	}
	return nil
}

// mayVote reports whether this server may vote for a candidate, or be the
// candidate, whose last log entry has index lastIndex. An index of at most
// firstEntries means that the group is new and no write can be lost.
func (a *admission) mayVote(lastIndex uint64) bool {
	return lastIndex <= firstEntries || !a.joining() && !a.held.Load()
}
