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

// machine is the state machine as Raft calls it: from one goroutine, one call at a time.
type machine struct {
	state    *memory.State
	restored func()      // called when the state is a snapshot's
	fail     func(error) // the store can go no further
	err      error       // why; from then on nothing is applied or snapshotted
}

var _ raft.ConfigurationStore = (*machine)(nil)

// result is what Apply hands to the Commit that waits for it.
type result struct {
	resources []*pb.Resource
	err       error
}

// Apply does one entry. Its result depends on state and entry alone; expectations that fail are such results. An entry
// that cannot be understood is none: another version may understand it, and the two states would differ for ever.
func (m *machine) Apply(log *raft.Log) any {
	if m.err != nil {
		return result{err: m.err}
	}
	var b pb.Batch
	err := proto.Unmarshal(log.Data, &b)
	if err == nil {
		err = resource.CheckOps(b.GetOps())
	}
	if err != nil {
		return result{err: m.broken(fmt.Errorf("log entry %d cannot be applied: %w; start a version of wanfed that can", log.Index, err))}
	}
	out, err := m.state.Apply(log.Index, b.GetOps())
	switch {
	case err == nil, resource.Refused(err), errors.Is(err, resource.ErrClosed):
		return result{out, err}
	default:
		return result{err: m.broken(fmt.Errorf("log entry %d cannot be applied: %w; restore the data dir from a backup, or remove it so that the server joins anew", log.Index, err))}
	}
}

func (m *machine) broken(err error) error {
	m.err = err
	m.fail(err)
	return err
}

// StoreConfiguration is there so that Raft counts membership entries as applied, and can snapshot after one.
func (m *machine) StoreConfiguration(uint64, raft.Configuration) {}

func (m *machine) Snapshot() (raft.FSMSnapshot, error) {
	if m.err != nil {
		return nil, m.err
	}
	return snapshot{m.state.Snapshot()}, nil
}

// Restore fails the store if it cannot read a snapshot whose checksum was right: to go on with an older one, as Raft would
// when it starts, is to lose what the log no longer has.
func (m *machine) Restore(r io.ReadCloser) error {
	if m.err != nil {
		return m.err
	}
	switch err := m.state.Restore(r); {
	case err == nil:
		m.restored()
		return nil
	case errors.Is(err, resource.ErrClosed):
		return nil // the store is being closed: the snapshot, which is on disk, is read when it is opened again
	default:
		return m.broken(err)
	}
}

// snapshot writes itself from a goroutine of Raft's, beside Apply.
type snapshot struct{ *memory.Snapshot }

func (s snapshot) Persist(sink raft.SnapshotSink) error {
	if _, err := s.WriteTo(sink); err != nil {
		return errors.Join(err, sink.Cancel())
	}
	return sink.Close()
}

func (s snapshot) Release() {}
