// SPDX-License-Identifier: MPL-2.0

package raftstore

import (
	"context"
	"errors"
	"fmt"

	"github.com/hashicorp/raft"
	"google.golang.org/protobuf/proto"

	"github.com/wanfed/wanfed/api/pb"
	"github.com/wanfed/wanfed/internal/tracing"
	"github.com/wanfed/wanfed/resource"
)

var _ resource.ReplicatedBackend = (*Store)(nil)

// Commit implements resource.Backend. Commit blocks for a disk write and a
// round trip to a majority. Only the leader commits; other servers return
// resource.ErrNotLeader. A batch above 32 MiB is invalid. If a server of the
// group does not support the ops, Commit returns resource.ErrUnsupported.
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
	ctx, span := tracing.Start(ctx, "raft apply")
	f, err := s.do(ctx, func() raft.Future { return s.raft.Apply(entry, untilDeadline(ctx)) })
	span.End(err != nil)
	if err != nil {
		if failure := s.failure(); failure != nil && !errors.Is(err, errRefused) {
			err = errors.Join(failure, err)
		}
		return nil, fmt.Errorf("commit: %w", writeError(err))
	}
	applied := f.(raft.ApplyFuture)
	res := applied.Response().(result)
	if res.err == nil {
		resource.Committed(ctx, applied.Index())
	}
	return res.resources, res.err
}

// OpsVersion implements resource.ReplicatedBackend.
func (s *Store) OpsVersion() (version int, node string) { return s.cfg.OpsVersion() }

// WriteError implements resource.ReplicatedBackend. It returns the reason why
// this server cannot write its log, as a resource.ErrReadOnly. It returns nil
// if no write has failed since the last successful write.
func (s *Store) WriteError() error { return s.log.WriteError() }

// Read implements resource.Backend. A strong read blocks for a round trip to a
// majority.
func (s *Store) Read(ctx context.Context, c resource.Consistency, id *pb.ID) (*pb.Resource, error) {
	if err := s.checkFresh(ctx, c); err != nil {
		return nil, fmt.Errorf("read %s: %w", resource.IDString(id), err)
	}
	return s.state.Read(ctx, id)
}

// List implements resource.Backend. A strong list blocks for a round trip to a
// majority.
func (s *Store) List(
	ctx context.Context, c resource.Consistency, q resource.Query,
) ([]*pb.Resource, uint64, error) {
	if err := s.checkFresh(ctx, c); err != nil {
		return nil, 0, fmt.Errorf("list %s: %w", resource.TypeString(q.Type), err)
	}
	return s.state.List(ctx, q)
}

// ListByOwner implements resource.Backend.
func (s *Store) ListByOwner(ctx context.Context, owner *pb.ID) ([]*pb.Resource, error) {
	return s.state.ListByOwner(ctx, owner)
}

// Watch implements resource.Backend. The watch returns changes after this
// server has applied them.
func (s *Store) Watch(q resource.Query) (resource.Watch, error) { return s.state.Watch(q) }

// Wait implements resource.Backend. Wait returns after this server has applied
// a change.
func (s *Store) Wait(ctx context.Context, q resource.Query, after uint64) error {
	return s.state.Wait(ctx, q, after)
}

// ReadIndex implements resource.ReplicatedBackend. ReadIndex blocks for a round
// trip to a majority, and writes nothing.
func (s *Store) ReadIndex(ctx context.Context) (uint64, error) {
	if err := s.checkFresh(ctx, resource.Strong); err != nil {
		return 0, fmt.Errorf("read index: %w", err)
	}
	return s.state.Index(), nil
}

// WaitIndex implements resource.ReplicatedBackend.
func (s *Store) WaitIndex(ctx context.Context, index uint64) error {
	return s.state.WaitIndex(ctx, index)
}

// checkFresh returns nil if the state of this server is fresh enough for a read
// of consistency c.
//
// A strong read has two conditions. The leader has applied everything of
// earlier terms (see leaderTerm). A majority has confirmed the leader since the
// call began. The leader has applied everything that it acknowledged, because
// Raft completes a commit after it applies the entry. If the term has changed
// during the call, another leader may have acknowledged entries that this
// server has not applied.
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
