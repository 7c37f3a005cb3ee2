// SPDX-License-Identifier: MPL-2.0

package memory

import (
	"context"
	"fmt"
	"io"

	"google.golang.org/protobuf/proto"

	"github.com/wanfed/wanfed/api/pb"
	"github.com/wanfed/wanfed/resource"
)

// Store is a resource.Backend that lives as long as the process. Every read of it is strong.
type Store struct{ state *State }

var _ resource.Backend = (*Store)(nil)

// New returns an empty store. The caller closes it.
func New() *Store { return &Store{state: NewState()} }

// Close ends watches and waits, and makes every later call fail, with resource.ErrClosed. It is idempotent.
func (s *Store) Close() error {
	s.state.Close()
	return nil
}

// Read is resource.Backend's.
func (s *Store) Read(ctx context.Context, _ resource.Consistency, id *pb.ID) (*pb.Resource, error) {
	return s.state.Read(ctx, id)
}

// List is resource.Backend's.
func (s *Store) List(ctx context.Context, _ resource.Consistency, q resource.Query) ([]*pb.Resource, uint64, error) {
	return s.state.List(ctx, q)
}

// ListByOwner is resource.Backend's.
func (s *Store) ListByOwner(ctx context.Context, owner *pb.ID) ([]*pb.Resource, error) {
	return s.state.ListByOwner(ctx, owner)
}

// Commit is resource.Backend's. It does not block. What a deletion leaves to later steps is done when it returns.
func (s *Store) Commit(ctx context.Context, ops ...*pb.Op) ([]*pb.Resource, error) {
	out, err := steps{s}.Commit(ctx, ops...)
	if err != nil {
		return nil, err
	}
	return out, resource.ReapAll(context.WithoutCancel(ctx), steps{s})
}

// steps is a Store that leaves tombstones where they are.
type steps struct{ *Store }

// Commit takes one step.
func (s steps) Commit(ctx context.Context, ops ...*pb.Op) ([]*pb.Resource, error) {
	if err := s.state.usable(ctx); err != nil {
		return nil, err
	}
	own := make([]*pb.Op, len(ops))
	for i, op := range ops {
		own[i] = proto.CloneOf(op)
		if _, err := proto.Marshal(op); err != nil {
			return nil, fmt.Errorf("%w op %d of %d: %w", resource.ErrInvalid, i+1, len(ops), err)
		}
	}
	return s.state.applyNext(own)
}

// Watch is resource.Backend's.
func (s *Store) Watch(q resource.Query) (resource.Watch, error) { return s.state.Watch(q) }

// Wait is resource.Backend's.
func (s *Store) Wait(ctx context.Context, q resource.Query, after uint64) error {
	return s.state.Wait(ctx, q, after)
}

// WriteSnapshot streams the present state to w.
func (s *Store) WriteSnapshot(w io.Writer) error {
	_, err := s.state.Snapshot().WriteTo(w)
	return err
}

// Restore replaces the state with a snapshot, of this store or of another; see State.Restore.
func (s *Store) Restore(r io.Reader) error { return s.state.restore(r, true) }
