// SPDX-License-Identifier: MPL-2.0

package raftstore

import (
	"context"
	"errors"
	"fmt"

	"github.com/hashicorp/raft"

	"github.com/wanfed/wanfed/api/pb"
	"github.com/wanfed/wanfed/resource"
)

// Read is resource.Backend's. A strong one blocks for a round trip to a majority.
func (s *Store) Read(ctx context.Context, c resource.Consistency, id *pb.ID) (*pb.Resource, error) {
	if err := s.fresh(ctx, c); err != nil {
		return nil, fmt.Errorf("read %s: %w", resource.IDString(id), err)
	}
	r, err := s.state.Read(ctx, id)
	return r, s.because(err)
}

// List is resource.Backend's. A strong one blocks for a round trip to a majority.
func (s *Store) List(ctx context.Context, c resource.Consistency, q resource.Query) ([]*pb.Resource, uint64, error) {
	if err := s.fresh(ctx, c); err != nil {
		return nil, 0, fmt.Errorf("list %s: %w", resource.TypeString(q.Type), err)
	}
	all, index, err := s.state.List(ctx, q)
	return all, index, s.because(err)
}

// ListByOwner is resource.Backend's.
func (s *Store) ListByOwner(ctx context.Context, owner *pb.ID) ([]*pb.Resource, error) {
	all, err := s.state.ListByOwner(ctx, owner)
	return all, s.because(err)
}

// Watch is resource.Backend's: of what this server has applied.
func (s *Store) Watch(q resource.Query) (resource.Watch, error) {
	w, err := s.state.Watch(q)
	if err != nil {
		return nil, s.because(err)
	}
	return watch{w, s}, nil
}

type watch struct {
	resource.Watch
	s *Store
}

func (w watch) Next(ctx context.Context) (*pb.WatchEvent, error) {
	ev, err := w.Watch.Next(ctx)
	return ev, w.s.because(err)
}

// Wait is resource.Backend's: for what this server has applied.
func (s *Store) Wait(ctx context.Context, q resource.Query, after uint64) error {
	return s.because(s.state.Wait(ctx, q, after))
}

// fresh returns when what this server has applied is fresh enough for c.
//
// For a strong read that is when this server leads, with everything of earlier terms applied (see view), and a majority
// has confirmed since the call began that it does. What this leader itself acknowledged was applied before that, since
// Raft answers Commit after Apply: there is nothing to wait for. If the term has changed meanwhile, another server may
// have led, and acknowledged what is not applied here.
func (s *Store) fresh(ctx context.Context, c resource.Consistency) error {
	if c != resource.Strong {
		return nil
	}
	if err := ctx.Err(); err != nil {
		return err
	}
	term, err := s.leadTerm(ctx)
	if err != nil {
		return err
	}
	ask := func() raft.Future { return s.raft.VerifyLeader() }
	if s.unproven.at.Load() != nil { // what is applied here may not be committed yet
		ask = func() raft.Future { return s.raft.Barrier(0) }
	}
	if _, err := s.call(ctx, ask); err != nil {
		return readError(err)
	}
	if s.raft.CurrentTerm() != term {
		return resource.ErrNotLeader
	}
	return nil
}

// readError says in our errors why a question to Raft that changes nothing failed.
func readError(err error) error {
	switch {
	case errors.Is(err, raft.ErrNotLeader), errors.Is(err, raft.ErrLeadershipLost), errors.Is(err, raft.ErrLeadershipTransferInProgress):
		return resource.ErrNotLeader
	case errors.Is(err, raft.ErrRaftShutdown):
		return resource.ErrClosed
	case errors.Is(err, raft.ErrEnqueueTimeout):
		return context.DeadlineExceeded
	}
	return err
}

// leadTerm returns the term in which this server leads. If it is elected but has not applied everything yet, it waits.
func (s *Store) leadTerm(ctx context.Context) (uint64, error) {
	for {
		v, changed := s.current()
		if v.term != 0 {
			return v.term, nil
		}
		if err := s.Err(); err != nil {
			return 0, err
		}
		if s.raft.State() != raft.Leader {
			return 0, resource.ErrNotLeader
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return 0, ctx.Err()
		case <-s.donec:
			return 0, resource.ErrClosed
		}
	}
}
