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

// TestService_ConcurrentWrites checks that all concurrent writes without a
// version succeed.
func TestService_ConcurrentWrites(t *testing.T) {
	f := newFixture(t, nil)
	f.write(node(t, "a", ""))
	var wg sync.WaitGroup
	for i := range 64 {
		wg.Go(func() {
			for range 5 {
				if _, err := f.Write(t.Context(), &pb.WriteRequest{
					Resource: node(t, "a", strconv.Itoa(i)),
				}); err != nil {
					t.Errorf("Write() = %v, want nil", err)
				}
			}
		})
	}
	wg.Wait()
}

// scriptedBackend is a Backend with stale eventual reads, like a new leader
// that still applies earlier entries, and with commits that fail.
type scriptedBackend struct {
	resource.Backend
	stale    *pb.Resource // result of eventual reads; nil: the stored resource
	errs     []error      // errors of the next commits
	attempts int          // number of commits
}

func (s *scriptedBackend) Read(ctx context.Context, c resource.Consistency, id *pb.ID) (*pb.Resource, error) {
	if c == resource.Eventual && s.stale != nil {
		return s.stale, nil
	}
	return s.Backend.Read(ctx, c, id)
}

func (s *scriptedBackend) Commit(ctx context.Context, ops ...*pb.Op) ([]*pb.Resource, error) {
	s.attempts++
	if len(s.errs) > 0 {
		err := s.errs[0]
		s.errs = s.errs[1:]
		return nil, err
	}
	return s.Backend.Commit(ctx, ops...)
}

// TestService_StaleRead checks that a stale read does not make a write fail.
func TestService_StaleRead(t *testing.T) {
	store := resourcetest.NewStore()
	defer store.Close()
	b := &scriptedBackend{Backend: store}
	f := newFixture(t, b)
	first := f.write(node(t, "a", "1"))
	second := f.write(node(t, "a", "2"))
	b.stale = first
	r := node(t, "a", "3")
	r.Version = second.Version
	if got := f.write(r); got.Version == second.Version {
		t.Errorf("Write() after a stale read = %v, want a new version", got)
	}
}

// TestService_Retry checks that a write without a version is retried after a
// conflict, up to eight attempts. Without a uid, the second attempt is an
// overwrite. A write with a version, and a write with another error, is not
// retried.
func TestService_Retry(t *testing.T) {
	store := resourcetest.NewStore()
	defer store.Close()
	b := &scriptedBackend{Backend: store}
	f := newFixture(t, b)
	first := f.write(node(t, "a", "1"))
	conflicts := func(n int) (errs []error) {
		for range n {
			errs = append(errs, fmt.Errorf("race: %w", resource.ErrConflict))
		}
		return errs
	}
	withUID := func(address string) *pb.Resource {
		r := node(t, "a", address)
		r.Id.Uid = first.Id.Uid
		return r
	}
	b.attempts, b.errs = 0, conflicts(7)
	f.write(withUID("2"))
	if b.attempts != 8 {
		t.Errorf("Write() with 7 conflicts made %d attempts, want 8", b.attempts)
	}
	b.errs = conflicts(8)
	f.fails(withUID("3"), codes.Aborted, resource.ErrConflict, "race")
	b.attempts, b.errs = 0, conflicts(1)
	if got := f.write(node(t, "a", "3")); b.attempts != 2 || got.Id.Uid != first.Id.Uid {
		t.Errorf("Write() without a uid made %d attempts and returned %v, want 2 and uid %s", b.attempts, got,
			first.Id.Uid)
	}

	r := node(t, "a", "4")
	stored, err := store.Read(t.Context(), resource.Strong, first.Id)
	if err != nil {
		t.Fatal(err)
	}
	r.Version = stored.Version
	b.attempts, b.errs = 0, conflicts(1)
	f.fails(r, codes.Aborted, resource.ErrConflict, "race")
	b.errs = []error{resource.ErrNotLeader}
	f.fails(node(t, "a", "5"), codes.Unavailable, resource.ErrNotLeader, "not the leader")
	b.errs = []error{resource.ErrUnknownOutcome}
	f.fails(node(t, "a", "6"), codes.Unknown, resource.ErrUnknownOutcome, "unknown")
	if b.attempts != 3 {
		t.Errorf("three writes that are not retried made %d attempts, want 3", b.attempts)
	}
}
