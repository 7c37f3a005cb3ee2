// SPDX-License-Identifier: MPL-2.0

package raftstore

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"

	"github.com/hashicorp/raft"
)

// unproven is a snapshot that this server has on disk, or is about to have, and of which it does not know that the group has
// it: one that an operator restores here, on the leader, or one that the leader sent. All other snapshots are of what is
// committed; such a one is only once a majority has it. If the leader dies before, the others may go on without it, and this
// server must notice: Raft would let it follow them with entries that it never applies, since its snapshot is above them.
//
// A file tells it to the next process.
type unproven struct {
	path string
	at   atomic.Pointer[raft.Log] // index and term; nil if all is proven
	mu   sync.Mutex               // held while the file changes
}

const unprovenFile = "unproven" // in the store's directory: index and term

// open reads the file; newest is the index of the newest snapshot on disk.
func (u *unproven) open(dir string, newest uint64) error {
	u.path = filepath.Join(dir, unprovenFile)
	b, err := os.ReadFile(u.path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	at := new(raft.Log)
	if n, err := fmt.Sscanf(string(b), "%d %d\n", &at.Index, &at.Term); n != 2 || err != nil {
		return fmt.Errorf("file %s does not hold an index and a term", u.path)
	}
	if newest < at.Index { // it never came to be
		return u.settle()
	}
	u.at.Store(at)
	return nil
}

// mark is called before the snapshot is written.
func (u *unproven) mark(index, term uint64) error {
	u.mu.Lock()
	defer u.mu.Unlock()
	if err := writeFile(u.path, fmt.Sprintf("%d %d\n", index, term)); err != nil {
		return err
	}
	u.at.Store(&raft.Log{Index: index, Term: term})
	return nil
}

// settle is called when the snapshot is proven, or not there.
func (u *unproven) settle() error {
	u.mu.Lock()
	defer u.mu.Unlock()
	u.at.Store(nil)
	if err := os.Remove(u.path); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return syncDir(filepath.Dir(u.path))
}

// hear looks at what a leader of a term sends: entries or a snapshot up to, or after, an index, with what it has committed.
// stored says that the snapshot is on disk by now. lost says that that leader has not got it, and will never have it.
func (u *unproven) hear(at *raft.Log, stored bool, term, index, committed uint64) (lost bool, err error) {
	switch {
	case term < at.Term:
		return false, nil
	case committed >= at.Index && index >= at.Index:
		return false, u.settle()
	}
	return stored && term > at.Term && index < at.Index, nil
}

// errLost is why a store whose unproven snapshot was lost can go no further.
func (s *Store) errLost(at *raft.Log) error {
	return fmt.Errorf("the snapshot restored here at index %d never reached a majority, and the datacenter went on without it; "+
		"take this server out of the Raft group (on another one: wanfed operator raft remove-peer %s --force), remove its data dir, and start it anew",
		at.Index, s.cfg.Node)
}

// settleEntries looks at entries of a leader before Raft does.
func (s *Store) settleEntries(req *raft.AppendEntriesRequest) error {
	at := s.unproven.at.Load()
	if at == nil || req.PrevLogEntry == 0 && len(req.Entries) == 0 && req.LeaderCommitIndex == 0 { // a heartbeat says nothing
		return nil
	}
	lost, err := s.unproven.hear(at, s.history.stores(at.Index), req.Term, req.PrevLogEntry, req.LeaderCommitIndex)
	if lost {
		err = s.errLost(at)
	}
	if err != nil {
		s.fail(err)
	}
	return err
}
