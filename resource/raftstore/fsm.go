// SPDX-License-Identifier: MPL-2.0

package raftstore

import (
	"errors"
	"fmt"
	"io"

	"github.com/hashicorp/raft"
	"google.golang.org/protobuf/proto"

	"github.com/wanfed/wanfed/api/pb"
	"github.com/wanfed/wanfed/resource"
	"github.com/wanfed/wanfed/resource/memory"
)

// machine is the state machine as Raft calls it: from one goroutine, one call at a time. Only ahead is called from another one.
type machine struct {
	state    *memory.State
	answers  *answers
	restored func()      // called when the state is a snapshot's
	fail     func(error) // the store can go no further
	err      error       // why; from then on nothing is applied or snapshotted
	done     ahead       // its mutex guards err too
}

var (
	_ raft.ConfigurationStore = (*machine)(nil)
	_ raft.BatchingFSM        = (*machine)(nil)
)

// result is what Apply hands to the Commit that waits for it.
type result struct {
	resources []*pb.Resource
	err       error
}

// Apply does one entry.
func (m *machine) Apply(log *raft.Log) any { return m.ApplyBatch([]*raft.Log{log})[0] }

// ApplyBatch does some entries as if each were alone. Its results depend on state and entries alone; expectations that fail are
// such results. An entry that cannot be understood is none: another version may understand it, and the two states would
// differ for ever. Nothing after it is applied.
func (m *machine) ApplyBatch(logs []*raft.Log) []any {
	m.done.mu.Lock()
	defer m.done.mu.Unlock()
	skipped := m.skip(logs)
	results := make([]any, len(logs))
	for i := range skipped {
		results[i] = result{err: m.err} // nobody waits for it
	}
	m.applyNew(logs[skipped:], results[skipped:])
	return results
}

// applyNew is ApplyBatch for entries that the state does not have yet.
func (m *machine) applyNew(logs []*raft.Log, results []any) {
	entries := make([]*memory.Entry, 0, len(logs))
	of := make([]*memory.Entry, len(logs))
	var broken error // of the entry at len(entries)
	for i, log := range logs {
		if log.Type != raft.LogCommand {
			continue
		}
		e, err := decode(log)
		if err != nil {
			broken = err
			break
		}
		entries = append(entries, e)
		of[i] = e
	}
	if m.err == nil {
		m.state.ApplyAll(entries)
	}
	for i, log := range logs {
		if log.Type == raft.LogCommand {
			results[i] = m.result(log, of[i], broken)
		}
	}
	m.answers.applied(logs, results)
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

// result is what became of a log entry. e is nil for the first that is broken, and all after it.
func (m *machine) result(log *raft.Log, e *memory.Entry, broken error) result {
	switch {
	case m.err != nil:
		return result{err: m.err}
	case e == nil:
		return result{err: m.broken(broken)}
	case e.Err == nil, resource.Rejected(e.Err), errors.Is(e.Err, resource.ErrClosed):
		return result{e.Resources, e.Err}
	}
	return result{err: m.broken(fmt.Errorf("log entry %d cannot be applied: %w; restore the data dir from a backup, or remove it so that the server joins anew", log.Index, e.Err))}
}

func (m *machine) broken(err error) error {
	m.err = err
	m.fail(err)
	return err
}

// StoreConfiguration is there so that Raft counts membership entries as applied, and can snapshot after one.
func (m *machine) StoreConfiguration(uint64, raft.Configuration) {}

func (m *machine) Snapshot() (raft.FSMSnapshot, error) {
	m.done.mu.Lock()
	defer m.done.mu.Unlock()
	if m.err != nil {
		return nil, m.err
	}
	if m.behind() {
		return nil, raft.ErrNothingNewToSnapshot
	}
	return fsmSnapshot{m.state.Snapshot()}, nil
}

// Restore fails the store if it cannot read a snapshot whose checksum was right: to go on with an older one, as Raft would
// when it starts, is to lose what the log no longer has.
func (m *machine) Restore(r io.ReadCloser) error {
	m.done.mu.Lock()
	defer m.done.mu.Unlock()
	if m.err != nil {
		return m.err
	}
	switch err := m.state.Restore(r); {
	case err == nil:
		m.done.index, m.done.term = 0, 0
		m.restored()
		return nil
	case errors.Is(err, resource.ErrClosed):
		return nil // the store is being closed: the snapshot, which is on disk, is read when it is opened again
	default:
		return m.broken(err)
	}
}

// snapshot writes itself from a goroutine of Raft's, beside Apply.
type fsmSnapshot struct{ *memory.Snapshot }

func (s fsmSnapshot) Persist(sink raft.SnapshotSink) error {
	if _, err := s.WriteTo(sink); err != nil {
		return errors.Join(err, sink.Cancel())
	}
	return sink.Close()
}

func (s fsmSnapshot) Release() {}
