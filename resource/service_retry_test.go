// SPDX-License-Identifier: MPL-2.0

package resource_test

import (
	"context"
	"fmt"
	"strconv"
	"sync"
	"testing"

	"google.golang.org/grpc/codes"

	"github.com/wanfed/wanfed/api/pb"
	"github.com/wanfed/wanfed/resource"
	"github.com/wanfed/wanfed/resource/resourcetest"
)

// TestServiceConcurrent checks that all concurrent writes without a version succeed.
func TestServiceConcurrent(t *testing.T) {
	g := newRig(t, nil)
	g.write(node(t, "a", ""))
	var wg sync.WaitGroup
	for i := range 64 {
		wg.Go(func() {
			for range 5 {
				if _, err := g.Write(t.Context(), &pb.WriteRequest{Resource: node(t, "a", strconv.Itoa(i))}); err != nil {
					t.Error(err)
				}
			}
		})
	}
	wg.Wait()
}

// scripted is a store with stale eventual reads, as a new leader that still applies
// earlier entries. Commits fail while errs has errors.
type scripted struct {
	resource.Backend
	stale *pb.Resource
	errs  []error
	tries int
}

func (s *scripted) Read(ctx context.Context, c resource.Consistency, id *pb.ID) (*pb.Resource, error) {
	if c == resource.Eventual && s.stale != nil {
		return s.stale, nil
	}
	return s.Backend.Read(ctx, c, id)
}

func (s *scripted) Commit(ctx context.Context, ops ...*pb.Op) ([]*pb.Resource, error) {
	s.tries++
	if len(s.errs) > 0 {
		err := s.errs[0]
		s.errs = s.errs[1:]
		return nil, err
	}
	return s.Backend.Commit(ctx, ops...)
}

// TestServiceStale checks that a stale read does not make a write fail.
func TestServiceStale(t *testing.T) {
	store := resourcetest.NewStore()
	defer store.Close()
	b := &scripted{Backend: store}
	g := newRig(t, b)
	first := g.write(node(t, "a", "1"))
	second := g.write(node(t, "a", "2"))
	b.stale = first
	r := node(t, "a", "3")
	r.Version = second.Version
	if got := g.write(r); got.Version == second.Version {
		t.Errorf("Write() = %v", got)
	}
}

// TestServiceRetry checks that a conflict is tried again a limited number of times,
// and only without a version. An overwrite needs one more try. Other errors are not
// tried again.
func TestServiceRetry(t *testing.T) {
	store := resourcetest.NewStore()
	defer store.Close()
	b := &scripted{Backend: store}
	g := newRig(t, b)
	first := g.write(node(t, "a", "1"))
	conflicts := func(n int) (errs []error) {
		for range n {
			errs = append(errs, fmt.Errorf("race: %w", resource.ErrConflict))
		}
		return errs
	}
	ofUID := func(address string) *pb.Resource {
		r := node(t, "a", address)
		r.Id.Uid = first.Id.Uid
		return r
	}
	b.tries, b.errs = 0, conflicts(7)
	g.write(ofUID("2"))
	if b.tries != 8 {
		t.Errorf("tries = %d, want the limit", b.tries)
	}
	b.errs = conflicts(8)
	g.fails(ofUID("3"), codes.Aborted, resource.ErrConflict, "race")
	b.tries, b.errs = 0, conflicts(1)
	if got := g.write(node(t, "a", "3")); b.tries != 2 || got.Id.Uid != first.Id.Uid {
		t.Errorf("tries without a uid = %d: %v", b.tries, got)
	}

	r := node(t, "a", "4")
	stored, _ := store.Read(t.Context(), resource.Strong, first.Id)
	r.Version = stored.Version
	b.tries, b.errs = 0, conflicts(1)
	g.fails(r, codes.Aborted, resource.ErrConflict, "race")
	b.errs = []error{resource.ErrNotLeader}
	g.fails(node(t, "a", "5"), codes.Unavailable, resource.ErrNotLeader, "not the leader")
	b.errs = []error{resource.ErrUnknownOutcome}
	g.fails(node(t, "a", "6"), codes.Unknown, resource.ErrUnknownOutcome, "unknown")
	if b.tries != 3 {
		t.Errorf("tries = %d, want 1 for each", b.tries)
	}
}
