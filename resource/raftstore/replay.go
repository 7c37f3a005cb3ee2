// SPDX-License-Identifier: MPL-2.0

package raftstore

import (
	"errors"
	"fmt"

	"github.com/hashicorp/raft"

	"github.com/wanfed/wanfed/resource"
	"github.com/wanfed/wanfed/resource/memory"
)

// replayAlone applies the log that the store was opened with, if this server is
// the only voter and Raft has applied nothing yet.
//
// Raft applies an entry after a leader has confirmed that the entry is
// committed. The only voter must lead to confirm its entries, and must write to
// the disk to lead. On a full disk, readers would therefore see only the last
// snapshot. Every entry in the log is committed, because this server alone is a
// majority. replayAlone applies the entries for readers. When Raft applies the
// entries later, the state machine skips them.
//
// The option RestoreCommittedLogs of raft 1.8.0 does not serve this purpose. It
// ignores membership entries, and deadlocks on more than 32768 entries.
func (s *Store) replayAlone() {
	if !s.isOnlyVoter() || s.guard.pending() {
		return
	}
	n, err := s.machine.replay(s.log, s.log.SnapshotIndex()+1, s.openIndex)
	switch {
	case s.Err() != nil: // logged already, or the store is closing
	case err != nil:
		s.logger.Warn("cannot replay raft log for readers", "err", err)
	case n > 0:
		s.logger.Info("raft log replayed for readers", "count", n)
	}
}

// replay applies the entries from first to last, and returns the number of
// applied commands. If Raft has already applied an entry, replay does nothing.
func (m *machine) replay(logs raft.LogStore, first, last uint64) (n int, err error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.err != nil || m.applied > 0 || m.replayed > 0 {
		return 0, nil
	}
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
			return n, err // the store fails when Raft applies the entry
		}
		m.state.ApplyAll([]*memory.Entry{e})
		m.replayed, m.replayedTerm = index, log.Term
		if res := m.result(e); m.err != nil || errors.Is(res.err, resource.ErrClosed) {
			return n, res.err
		}
		n++
	}
	return n, nil
}

// skipReplayed returns the number of entries at the beginning of logs that
// replay has applied, and records the last entry as applied by Raft. The caller
// holds m.mu.
func (m *machine) skipReplayed(logs []*raft.Log) int {
	n := 0
	for _, log := range logs {
		if log.Index > m.replayed {
			break
		}
		n++
		if log.Index == m.replayed && log.Term != m.replayedTerm && m.err == nil {
			_ = m.failWith(fmt.Errorf("log entry %d is of term %d, but one of term %d was applied: "+
				"another server led this one, which was the only voter; %s", log.Index, log.Term, m.replayedTerm, rejoinRemedy))
		}
	}
	if len(logs) > 0 {
		m.applied = logs[len(logs)-1].Index
	}
	return n
}
