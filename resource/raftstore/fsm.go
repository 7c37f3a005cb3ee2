// SPDX-License-Identifier: MPL-2.0

package raftstore

import (
	"errors"
	"fmt"
	"io"
	"slices"
	"sync"

	"github.com/hashicorp/raft"
	"google.golang.org/protobuf/proto"

	"github.com/wanfed/wanfed/api/pb"
	"github.com/wanfed/wanfed/resource"
	"github.com/wanfed/wanfed/resource/memory"
)

// machine is the state machine (raft.FSM). Raft calls it from one goroutine.
type machine struct {
	state    *memory.State
	restored func()      // called after a snapshot became the state
	fail     func(error) // stops the store

	mu  sync.Mutex // held while entries are applied, because replay has its own goroutine
	err error      // reason for the failure of the store; once set, nothing is applied or saved
	// applied is the index of the last entry that Raft has applied in this
	// process. 0 means none.
	applied uint64
	// replayed and replayedTerm are the index and the term of the last entry
	// that replay applied. 0 means none.
	replayed, replayedTerm uint64

	checkpoints checkpoints
}

var (
	_ raft.ConfigurationStore = (*machine)(nil)
	_ raft.BatchingFSM        = (*machine)(nil)
)

// result is the response to one entry. Raft passes it to the Commit that
// appended the entry.
type result struct {
	resources []*pb.Resource
	err       error
}

func (m *machine) Apply(log *raft.Log) any { return m.ApplyBatch([]*raft.Log{log})[0] }

// ApplyBatch implements raft.BatchingFSM. Its results depend only on the state
// and the entries, as if each entry were applied alone. A failed expectation is
// a valid result. An entry that cannot be decoded fails the store, and no later
// entry is applied. Otherwise the state would differ from the state of a server
// whose version can decode the entry.
func (m *machine) ApplyBatch(logs []*raft.Log) []any {
	m.mu.Lock()
	defer m.mu.Unlock()
	skipped := m.skipReplayed(logs)
	results := make([]any, len(logs))
	for i := range skipped {
		results[i] = result{err: m.err} // no Commit receives this result
	}
	for i := skipped; i < len(logs); {
		n := 1 + slices.IndexFunc(logs[i:], isCheckpoint)
		if n == 0 { // no checkpoint
			n = len(logs) - i
		}
		m.applyNew(logs[i:i+n], results[i:i+n])
		i += n
		if last := logs[i-1]; isCheckpoint(last) && m.err == nil {
			m.checkpoints.set(last.Index, m.state.Snapshot())
		}
	}
	return results
}

// applyNew applies entries that the state does not have, and sets their
// results.
func (m *machine) applyNew(logs []*raft.Log, results []any) {
	entries := make([]*memory.Entry, 0, len(logs))
	byLog := make([]*memory.Entry, len(logs))
	var decodeErr error // error of the first entry that cannot be decoded
	for i, log := range logs {
		if log.Type != raft.LogCommand {
			continue
		}
		if byLog[i], decodeErr = decode(log); decodeErr != nil {
			break
		}
		entries = append(entries, byLog[i])
	}
	if m.err == nil {
		m.state.Apply(entries...)
	}
	for i, log := range logs {
		switch {
		case log.Type != raft.LogCommand:
		case m.err == nil && byLog[i] == nil:
			results[i] = result{err: m.failWith(decodeErr)}
		default:
			results[i] = m.result(byLog[i])
		}
	}
}

func decode(log *raft.Log) (*memory.Entry, error) {
	var b pb.Batch
	err := proto.Unmarshal(log.Data, &b)
	if err == nil {
		err = resource.CheckOps(b.GetOps())
	}
	if err != nil {
		return nil, fmt.Errorf("log entry %d cannot be applied: %w; start a version of wanfed that can", log.Index, err)
	}
	return &memory.Entry{Index: log.Index, Ops: b.GetOps()}, nil
}

// result returns the result of an applied entry. An unexpected error fails the
// store.
func (m *machine) result(e *memory.Entry) result {
	switch {
	case m.err != nil:
		return result{err: m.err}
	case e.Err == nil, resource.Rejected(e.Err), m.state.Err() != nil:
		return result{e.Resources, e.Err}
	}
	return result{err: m.failWith(fmt.Errorf("log entry %d cannot be applied: %w; %s", e.Index, e.Err, rejoinRemedy))}
}

func (m *machine) failWith(err error) error {
	m.err = err
	m.fail(err)
	return err
}

// StoreConfiguration implements raft.ConfigurationStore. With this method, Raft
// counts membership entries as applied, and can take a snapshot after them.
func (m *machine) StoreConfiguration(uint64, raft.Configuration) {}

// Snapshot implements raft.FSM. While the state has replayed entries that Raft
// has not applied, Snapshot returns an error. The data of a snapshot would be
// newer than the index in its metadata.
func (m *machine) Snapshot() (raft.FSMSnapshot, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.err != nil {
		return nil, m.err
	}
	if m.applied < m.replayed {
		return nil, raft.ErrNothingNewToSnapshot
	}
	return fsmSnapshot{m.state.Snapshot()}, nil
}

// Restore implements raft.FSM. An unreadable snapshot with a correct checksum
// fails the store. Otherwise Raft would start with an older snapshot and lose
// the entries that the log no longer has.
func (m *machine) Restore(r io.ReadCloser) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.err != nil {
		return m.err
	}
	switch err := m.state.Restore(r); {
	case err == nil:
		m.replayed, m.replayedTerm = 0, 0
		m.restored()
		return nil
	case m.state.Err() != nil:
		return nil // the store is closed; the next process reads the snapshot from disk
	default:
		return m.failWith(err)
	}
}

// fsmSnapshot is a snapshot for Raft. Raft writes the snapshot in another
// goroutine while the machine applies entries.
type fsmSnapshot struct{ *memory.Snapshot }

func (s fsmSnapshot) Persist(sink raft.SnapshotSink) error {
	if _, err := s.WriteTo(sink); err != nil {
		return errors.Join(err, sink.Cancel())
	}
	return sink.Close()
}

func (s fsmSnapshot) Release() {}

// replayAlone applies the log entries that existed when the store was opened.
// It does so only if this server is the only voter and Raft has applied nothing
// yet.
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
		m.state.Apply(e)
		m.replayed, m.replayedTerm = index, log.Term
		if res := m.result(e); m.err != nil || m.state.Err() != nil {
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
		// replay treated every entry in the log as committed, because this
		// server was the only voter. An entry of another term at the same index
		// means that another server has led this server since then, and has
		// replaced entries of its log. The state then has an entry that was
		// never committed, so the store must fail.
		if log.Index == m.replayed && log.Term != m.replayedTerm && m.err == nil {
			_ = m.failWith(fmt.Errorf("log entry %d is of term %d, but one of term %d was applied: "+
				"another server led this one, which was the only voter; %s", log.Index, log.Term, m.replayedTerm,
				rejoinRemedy))
		}
	}
	if len(logs) > 0 {
		m.applied = logs[len(logs)-1].Index
	}
	return n
}
