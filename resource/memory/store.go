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

// Store is a resource.Backend that lives as long as the process. All its reads
// are strong.
type Store struct{ state *State }

var _ resource.Backend = (*Store)(nil)

// New returns an empty store. The caller closes it.
func New() *Store { return &Store{state: NewState()} }

// Close ends watches and waits with resource.ErrClosed, and makes later calls
// fail with it. It is idempotent.
func (s *Store) Close() error {
	s.state.Close()
	return nil
}

// Read implements resource.Backend.
func (s *Store) Read(ctx context.Context, _ resource.Consistency, id *pb.ID) (*pb.Resource, error) {
	return s.state.Read(ctx, id)
}

// List implements resource.Backend.
func (s *Store) List(
	ctx context.Context, _ resource.Consistency, q resource.Query,
) ([]*pb.Resource, uint64, error) {
	return s.state.List(ctx, q)
}

// ListByOwner implements resource.Backend.
func (s *Store) ListByOwner(ctx context.Context, owner *pb.ID) ([]*pb.Resource, error) {
	return s.state.ListByOwner(ctx, owner)
}

// Commit implements resource.Backend. It does not block. All owned resources of
// deleted ones are deleted when it returns.
func (s *Store) Commit(ctx context.Context, ops ...*pb.Op) ([]*pb.Resource, error) {
	out, err := unreaped{s}.Commit(ctx, ops...)
	if err != nil {
		return nil, err
	}
	return out, resource.ReapAll(context.WithoutCancel(ctx), unreaped{s})
}

// unreaped is a Store whose Commit leaves tombstones.
type unreaped struct{ *Store }

// Commit implements resource.Backend.
func (s unreaped) Commit(ctx context.Context, ops ...*pb.Op) ([]*pb.Resource, error) {
	if err := s.state.usable(ctx); err != nil {
		return nil, err
	}
	cloned := make([]*pb.Op, len(ops))
	for i, op := range ops {
		cloned[i] = proto.CloneOf(op)
		if _, err := proto.Marshal(op); err != nil {
			return nil, fmt.Errorf("%w op %d of %d: %w", resource.ErrInvalid, i+1, len(ops), err)
		}
	}
	return s.state.applyNext(cloned)
}

// Watch implements resource.Backend.
func (s *Store) Watch(q resource.Query) (resource.Watch, error) { return s.state.Watch(q) }

// Wait implements resource.Backend.
func (s *Store) Wait(ctx context.Context, q resource.Query, after uint64) error {
	return s.state.Wait(ctx, q, after)
}

// WriteSnapshot streams the present state to w.
func (s *Store) WriteSnapshot(w io.Writer) error {
	_, err := s.state.Snapshot().WriteTo(w)
	return err
}

// Restore replaces the state with a snapshot of this store or of another. See
// State.Restore.
func (s *Store) Restore(r io.Reader) error { return s.state.restore(r, true) }
