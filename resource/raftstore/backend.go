// SPDX-License-Identifier: MPL-2.0

package raftstore

import (
	"context"
	"errors"
	"fmt"

	"github.com/hashicorp/raft"
	"google.golang.org/protobuf/proto"

	"github.com/wanfed/wanfed/api/pb"
	"github.com/wanfed/wanfed/resource"
)

var _ resource.ReplicatedBackend = (*Store)(nil)

// Commit implements resource.Backend. It blocks for a disk write and a round
// trip to a majority. On a server that does not lead, it returns
// resource.ErrNotLeader. A batch above 32 MiB is invalid. A batch that some
// server of the group does not support fails with resource.ErrUnsupported.
func (s *Store) Commit(ctx context.Context, ops ...*pb.Op) ([]*pb.Resource, error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	if err := resource.CheckOps(ops); err != nil {
		return nil, err
	}
	if err := resource.CheckSupported(ops, s.cfg.OpsVersion); err != nil {
		return nil, err
	}
	entry, err := proto.Marshal(&pb.Batch{Ops: ops})
	if err != nil {
		return nil, fmt.Errorf("encode batch: %w", err)
	}
	if len(entry) > maxEntry {
		return nil, fmt.Errorf("%w batch: %d ops of %d bytes are above %d; commit them in several",
			resource.ErrInvalid, len(ops), len(entry), maxEntry)
	}
	f, err := s.do(ctx, func() raft.Future { return s.raft.Apply(entry, untilDeadline(ctx)) })
	if err != nil {
		if why := s.failure(); why != nil && !errors.Is(err, errRefused) {
			err = errors.Join(why, err)
		}
		return nil, fmt.Errorf("commit: %w", writeError(err))
	}
	res := f.(raft.ApplyFuture).Response().(result)
	return res.resources, s.because(res.err)
}

// OpsVersion implements resource.ReplicatedBackend.
func (s *Store) OpsVersion() (version int, node string) { return s.cfg.OpsVersion() }

// WriteError implements resource.ReplicatedBackend. It returns the reason why
// this server cannot write its log now, as a resource.ErrReadOnly. It returns
// nil while the log can be written, and until a write has failed.
func (s *Store) WriteError() error { return s.log.WriteError() }

// Read implements resource.Backend. A strong read blocks for a round trip to a
// majority.
func (s *Store) Read(ctx context.Context, c resource.Consistency, id *pb.ID) (*pb.Resource, error) {
	if err := s.checkFresh(ctx, c); err != nil {
		return nil, fmt.Errorf("read %s: %w", resource.IDString(id), err)
	}
	r, err := s.state.Read(ctx, id)
	return r, s.because(err)
}

// List implements resource.Backend. A strong list blocks for a round trip to a
// majority.
func (s *Store) List(
	ctx context.Context, c resource.Consistency, q resource.Query,
) ([]*pb.Resource, uint64, error) {
	if err := s.checkFresh(ctx, c); err != nil {
		return nil, 0, fmt.Errorf("list %s: %w", resource.TypeString(q.Type), err)
	}
	all, index, err := s.state.List(ctx, q)
	return all, index, s.because(err)
}

// ListByOwner implements resource.Backend.
func (s *Store) ListByOwner(ctx context.Context, owner *pb.ID) ([]*pb.Resource, error) {
	all, err := s.state.ListByOwner(ctx, owner)
	return all, s.because(err)
}

// Watch implements resource.Backend. It sends the changes that this server has
// applied.
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

// Wait implements resource.Backend. It waits for a change that this server
// applies.
func (s *Store) Wait(ctx context.Context, q resource.Query, after uint64) error {
	return s.because(s.state.Wait(ctx, q, after))
}

// ReadIndex implements resource.ReplicatedBackend. It blocks for a round trip
// to a majority, and writes nothing.
func (s *Store) ReadIndex(ctx context.Context) (uint64, error) {
	if err := s.checkFresh(ctx, resource.Strong); err != nil {
		return 0, fmt.Errorf("read index: %w", err)
	}
	return s.state.Index(), nil
}

// WaitIndex implements resource.ReplicatedBackend.
func (s *Store) WaitIndex(ctx context.Context, index uint64) error {
	return s.because(s.state.WaitIndex(ctx, index))
}

// checkFresh returns nil when the applied state of this server is fresh enough
// for c.
//
// A strong read needs a leader that has applied everything of earlier terms
// (see leaderTerm), and a majority that has confirmed its leadership since the
// call began. Everything that this leader acknowledged is applied, because Raft
// completes a commit after it applies the entry. If the term has changed since
// then, another server may have led, and acknowledged entries that are not
// applied here.
func (s *Store) checkFresh(ctx context.Context, c resource.Consistency) error {
	if c != resource.Strong {
		return nil
	}
	if err := ctx.Err(); err != nil {
		return err
	}
	term, err := s.leaderTerm(ctx)
	if err != nil {
		return err
	}
	confirm := func() raft.Future { return s.raft.VerifyLeader() }
	if s.guard.pending() { // a restored snapshot may not be committed yet
		confirm = func() raft.Future { return s.raft.Barrier(0) }
	}
	if _, err := s.do(ctx, confirm); err != nil {
		return readError(err)
	}
	if s.raft.CurrentTerm() != term {
		return resource.ErrNotLeader
	}
	return nil
}
