// SPDX-License-Identifier: MPL-2.0

package resourcetest

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"sync"

	"google.golang.org/protobuf/proto"

	"github.com/wanfed/wanfed/api/pb"
	"github.com/wanfed/wanfed/resource"
	"github.com/wanfed/wanfed/resource/memory"
)

// Store is a resource.Backend in memory. Every read is strong.
type Store struct {
	*memory.State
	mu sync.Mutex // held during a Commit
}

var _ resource.Backend = (*Store)(nil)

// NewStore returns an empty store. The caller closes the store.
func NewStore() *Store { return &Store{State: memory.NewState()} }

// Read implements resource.Backend.
func (s *Store) Read(ctx context.Context, _ resource.Consistency, id *pb.ID) (*pb.Resource, error) {
	return s.State.Read(ctx, id)
}

// List implements resource.Backend.
func (s *Store) List(ctx context.Context, _ resource.Consistency, q resource.Query) ([]*pb.Resource, uint64, error) {
	return s.State.List(ctx, q)
}

// Commit implements resource.Backend. When Commit returns, all resources owned
// by deleted resources are deleted.
func (s *Store) Commit(ctx context.Context, ops ...*pb.Op) ([]*pb.Resource, error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	stored, err := keepTombstones{s}.Commit(ctx, ops...)
	if err != nil {
		return nil, err
	}
	ctx = context.WithoutCancel(ctx)
	for q := (resource.Query{Type: resource.TombstoneType}); ; {
		tombstones, _, err := s.State.List(ctx, q)
		if err != nil || len(tombstones) == 0 {
			return stored, err
		}
		if _, err := resource.ReapOnce(ctx, keepTombstones{s}, slog.New(slog.DiscardHandler)); err != nil {
			return stored, err
		}
	}
}

// keepTombstones is a Store whose Commit leaves tombstones, and the resources
// that their deleted owners own, to resource.ReapOnce.
type keepTombstones struct{ *Store }

// Commit applies a copy of ops with the next index.
func (s keepTombstones) Commit(_ context.Context, ops ...*pb.Op) ([]*pb.Resource, error) {
	cloned := make([]*pb.Op, len(ops))
	for i, op := range ops {
		cloned[i] = proto.CloneOf(op)
		if _, err := proto.Marshal(op); err != nil {
			return nil, fmt.Errorf("%w op %d of %d: %w", resource.ErrInvalid, i+1, len(ops), err)
		}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	e := &memory.Entry{Index: s.Index() + 1, Ops: cloned}
	s.Apply(e)
	return e.Resources, e.Err
}

// WriteSnapshot writes a snapshot of the present state to w.
func (s *Store) WriteSnapshot(w io.Writer) error {
	_, err := s.Snapshot().WriteTo(w)
	return err
}
