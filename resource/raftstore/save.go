// SPDX-License-Identifier: MPL-2.0

package raftstore

import (
	"context"
	"fmt"
	"io"

	"github.com/wanfed/wanfed/resource"
	"github.com/wanfed/wanfed/resource/memory"
)

// Saved is the state at one moment. It keeps that state in memory, as long as it is referred to.
type Snapshot struct {
	// Index is the store index of the last change in it, Term that of the leader.
	Index, Term uint64
	snapshot    *memory.Snapshot
}

// Save returns the present state, with all that was acknowledged before the call. It blocks for a round trip to a majority.
// Only the leader can: resource.ErrNotLeader.
func (s *Store) Snapshot(ctx context.Context) (*Snapshot, error) {
	if err := s.fresh(ctx, resource.Strong); err != nil {
		return nil, fmt.Errorf("save snapshot: %w", err)
	}
	term, snapshot := s.raft.CurrentTerm(), s.state.Snapshot()
	return &Snapshot{Index: snapshot.Index(), Term: term, snapshot: snapshot}, nil
}

// WriteTo streams the data of a snapshot file.
func (s *Snapshot) WriteTo(w io.Writer) (int64, error) { return s.snapshot.WriteTo(w) }
