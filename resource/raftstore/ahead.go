// SPDX-License-Identifier: MPL-2.0

package raftstore

import (
	"errors"
	"fmt"
	"sync"

	"github.com/hashicorp/raft"

	"github.com/wanfed/wanfed/resource"
	"github.com/wanfed/wanfed/resource/memory"
)

// ahead is what the state has of the log before Raft has applied it.
//
// Raft applies what comes after the newest snapshot once it knows that it is committed, and a server that starts knows that from who
// leads. One that is the only voter leads itself, and for that must write: with a full disk it would show what the snapshot
// has, and nothing else. But whatever is in its log is committed: a majority, itself, has it, and nobody else can be elected. So the
// entries that were there when it started are applied for readers, and are skipped when Raft comes to them.
type ahead struct {
	mu    sync.Mutex // held while anything is applied
	index uint64     // of the last entry that was applied ahead; 0: none was
	term  uint64     // of that entry
	raft  uint64     // the last entry that Raft has applied in this process; 0: none
}

// aloneAhead applies what the log had when the store was opened, if this server is the only voter and Raft has applied nothing yet.
func (s *Store) aloneAhead() {
	if !s.alone() || s.unproven.at.Load() != nil {
		return
	}
	n, err := s.machine.ahead(s.history, s.history.covered()+1, s.opened)
	switch {
	case s.Err() != nil: // told already, or it is being closed
	case err != nil:
		s.log.Warn("records of the log are not shown before it can be written", "err", err)
	case n > 0:
		s.log.Info("records of the log are shown, though it cannot be written", "entries", n)
	}
}

// ahead applies the entries from first to last, and returns how many there were. Raft must not have applied any.
func (m *machine) ahead(logs raft.LogStore, first, last uint64) (n int, err error) {
	m.done.mu.Lock()
	defer m.done.mu.Unlock()
	if m.err != nil || m.done.raft > 0 || m.done.index > 0 {
		return 0, nil
	}
	var entries []*memory.Entry
	apply := func(upTo, term uint64) error {
		m.state.ApplyAll(entries)
		m.done.index, m.done.term = upTo, term
		for _, e := range entries {
			switch {
			case e.Err == nil, resource.Rejected(e.Err):
			case errors.Is(e.Err, resource.ErrClosed):
				return e.Err
			default:
				return m.broken(fmt.Errorf("log entry %d cannot be applied: %w", e.Index, e.Err))
			}
		}
		n += len(entries)
		entries = entries[:0]
		return nil
	}
	var upTo, term uint64 // of entries
	for index := first; index <= last; index++ {
		var log raft.Log
		if err := logs.GetLog(index, &log); err != nil {
			return n, fmt.Errorf("log entry %d: %w", index, err)
		}
		if log.Type != raft.LogCommand {
			continue
		}
		e, err := decode(&log)
		if err != nil {
			return n, err // Raft finds it too
		}
		entries, upTo, term = append(entries, e), index, log.Term
		if len(entries) == maxBatch {
			if err := apply(upTo, term); err != nil {
				return n, err
			}
		}
	}
	if len(entries) > 0 {
		err = apply(upTo, term)
	}
	return n, err
}

// skip returns how many of these entries, the first ones, were applied ahead. It is called with m.done.mu held.
func (m *machine) skip(logs []*raft.Log) int {
	n := 0
	for _, log := range logs {
		if log.Index > m.done.index {
			break
		}
		n++
		if log.Index == m.done.index && log.Term != m.done.term && m.err == nil {
			_ = m.broken(fmt.Errorf("log entry %d is of term %d, but one of term %d was applied: another server led this one, which was the only voter; "+
				"restore the data dir from a backup, or remove it so that the server joins anew", log.Index, log.Term, m.done.term))
		}
	}
	if len(logs) > 0 {
		m.done.raft = logs[len(logs)-1].Index
	}
	return n
}

// behind says that Raft has not come to what was applied ahead: a snapshot would have more than Raft says that it has. It is called
// with m.done.mu held.
func (m *machine) behind() bool { return m.done.raft < m.done.index }
