// SPDX-License-Identifier: MPL-2.0

package memory

import (
	"context"
	"sync"

	"google.golang.org/protobuf/proto"

	"github.com/wanfed/wanfed/api/pb"
	"github.com/wanfed/wanfed/resource"
)

// Store is a resource.Backend over a State. Its Commit leaves tombstones. The
// tests of this package cannot use resourcetest.Store, because package
// resourcetest imports this package.
type Store struct {
	*State
	mu sync.Mutex // held during a Commit
}

func New() *Store { return &Store{State: NewState()} }

func (s *Store) Read(ctx context.Context, _ resource.Consistency, id *pb.ID) (*pb.Resource, error) {
	return s.State.Read(ctx, id)
}

func (s *Store) List(ctx context.Context, _ resource.Consistency, q resource.Query) ([]*pb.Resource, uint64, error) {
	return s.State.List(ctx, q)
}

// Commit applies a copy of ops with the next index.
func (s *Store) Commit(_ context.Context, ops ...*pb.Op) ([]*pb.Resource, error) {
	cloned := make([]*pb.Op, len(ops))
	for i, op := range ops {
		cloned[i] = proto.CloneOf(op)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	return applyOps(s.State, s.Index()+1, cloned)
}

// applyOps applies one entry.
func applyOps(s *State, index uint64, ops []*pb.Op) ([]*pb.Resource, error) {
	e := &Entry{Index: index, Ops: ops}
	s.Apply(e)
	return e.Resources, e.Err
}
