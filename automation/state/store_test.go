// SPDX-License-Identifier: MPL-2.0

package state

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/wanfed/wanfed/api/pb"
	"github.com/wanfed/wanfed/automation/task"
	"github.com/wanfed/wanfed/internal/testutil"
	"github.com/wanfed/wanfed/resource"
	"github.com/wanfed/wanfed/resource/resourcetest"
	"github.com/wanfed/wanfed/tlsutil"
)

// server is a resource service in memory, which a sync daemon calls.
type server struct {
	pb.ResourceServiceClient
	// before is called before each write and deletion. Nil: nothing. If it
	// returns an error, the write fails with it.
	before func(typ *pb.Type) error
	// lost makes the next write succeed without a response.
	lost       atomic.Bool
	unreadable atomic.Bool // reads fail
	writes     atomic.Int64
}

func newServer(t testing.TB) *server {
	t.Helper()
	registry := resource.NewRegistry()
	if err := task.Register(registry); err != nil {
		t.Fatal(err)
	}
	backend := resourcetest.NewStore()
	t.Cleanup(backend.Close)
	service, err := resource.NewService(resource.ServiceConfig{
		Backend: backend, Registry: registry, DC: "dc1", Primary: func() bool { return true },
		Peer: func(context.Context) (tlsutil.Peer, error) {
			return tlsutil.Peer{Role: tlsutil.RoleSync, DC: "dc1", Node: "sync1"}, nil
		},
		Decide: resourcetest.Decide(&tlsutil.Peer{Role: tlsutil.RoleSync, DC: "dc1", Node: "sync1"}),
	})
	if err != nil {
		t.Fatal(err)
	}
	return &server{ResourceServiceClient: service.Client()}
}

func (s *server) Read(ctx context.Context, in *pb.ReadRequest, opts ...grpc.CallOption) (*pb.ReadResponse, error) {
	if s.unreadable.Load() {
		return nil, status.Error(codes.Unavailable, "no server responds")
	}
	return s.ResourceServiceClient.Read(ctx, in, opts...)
}

func (s *server) Write(ctx context.Context, in *pb.WriteRequest, opts ...grpc.CallOption) (*pb.WriteResponse, error) {
	if s.before != nil {
		if err := s.before(in.Resource.Id.Type); err != nil {
			return nil, err
		}
	}
	s.writes.Add(1)
	resp, err := s.ResourceServiceClient.Write(ctx, in, opts...)
	if err == nil && s.lost.Swap(false) {
		return nil, status.Error(codes.DeadlineExceeded, "the response was lost")
	}
	return resp, err
}

func (s *server) Delete(ctx context.Context, in *pb.DeleteRequest, opts ...grpc.CallOption) (*pb.DeleteResponse, error) {
	if s.before != nil {
		if err := s.before(in.Id.Type); err != nil {
			return nil, err
		}
	}
	return s.ResourceServiceClient.Delete(ctx, in, opts...)
}

func newStore(t testing.TB, s *server) *Store {
	t.Helper()
	store, err := NewStore(StoreConfig{Client: s, KeyFile: keyFile(t, line("k1", 1))})
	if err != nil {
		t.Fatalf("NewStore() = %v, want nil", err)
	}
	return store
}

// claimOf returns the claim of a daemon of task web.
func claimOf(epoch uint64) Claim {
	return Claim{Task: "web", Instance: fmt.Sprintf("daemon%d", epoch), Epoch: epoch}
}

// mustClaim claims task web.
func mustClaim(t testing.TB, s *Store, epoch uint64) Claim {
	t.Helper()
	c := claimOf(epoch)
	if _, err := s.Claim(t.Context(), c); err != nil {
		t.Fatalf("Claim(%d) = %v, want nil", epoch, err)
	}
	return c
}

// applied is a change for Update.
func applied(digest string) func(*pb.TaskState) error {
	return func(st *pb.TaskState) error {
		st.AppliedInputs = digest
		return nil
	}
}

func TestStore_ClaimCreates(t *testing.T) {
	s := newStore(t, newServer(t))
	if _, err := s.Read(t.Context(), "web"); !errors.Is(err, resource.ErrNotFound) {
		t.Errorf("Read() before the first claim = %v, want %v", err, resource.ErrNotFound)
	}
	c := mustClaim(t, s, 5)
	if _, err := s.Update(t.Context(), c, applied("a")); err != nil {
		t.Fatalf("Update() = %v, want nil", err)
	}
	st, err := s.Read(t.Context(), "web")
	if err != nil || st.Instance != "daemon5" || st.Epoch != 5 || st.AppliedInputs != "a" {
		t.Errorf("Read() = %v, %v, want the claim of daemon5 and the digest", st, err)
	}
}

func TestStore_Replaced(t *testing.T) {
	s := newStore(t, newServer(t))
	old := mustClaim(t, s, 5)
	mustClaim(t, s, 7)
	other := claimOf(7)
	other.Instance = "daemon8"
	for _, c := range []Claim{old, other} {
		_, updateErr := s.Update(t.Context(), c, applied("late"))
		_, claimErr := s.Claim(t.Context(), c)
		for method, err := range map[string]error{"Update": updateErr, "Claim": claimErr, "Delete": s.Delete(t.Context(), c)} {
			if !errors.Is(err, ErrReplaced) || !strings.Contains(err.Error(), "daemon7 has the task now, with epoch 7") {
				t.Errorf("%s(%v) = %v, want %v by daemon7", method, c, err, ErrReplaced)
			}
		}
	}
	if st, err := s.Read(t.Context(), "web"); err != nil || st.AppliedInputs != "" || st.Instance != "daemon7" {
		t.Errorf("Read() = %v, %v, want the claim of daemon7 alone", st, err)
	}
}

// TestStore_StaleCreate checks that a claim which was delayed after it had found
// no state does not replace the state of a later claim.
func TestStore_StaleCreate(t *testing.T) {
	srv := newServer(t)
	s := newStore(t, srv)
	srv.before = func(*pb.Type) error {
		srv.before = nil
		_, err := s.Update(t.Context(), claimOf(7), applied("a"))
		return err
	}
	if _, err := s.Claim(t.Context(), claimOf(5)); !errors.Is(err, ErrReplaced) {
		t.Errorf("Claim(5) = %v, want %v", err, ErrReplaced)
	}
	if st, err := s.Read(t.Context(), "web"); err != nil || st.Epoch != 7 || st.AppliedInputs != "a" {
		t.Errorf("Read() = %v, %v, want the state of epoch 7", st, err)
	}
}

func TestStore_OperatorKeepsClaim(t *testing.T) {
	s := newStore(t, newServer(t))
	mustClaim(t, s, 7)
	st, err := s.Update(t.Context(), Claim{Task: "web"}, func(st *pb.TaskState) error {
		st.Approved = "digest"
		return nil
	})
	if err != nil || st.Instance != "daemon7" || st.Epoch != 7 || st.Approved != "digest" {
		t.Errorf("Update() without an epoch = %v, %v, want the claim of daemon7", st, err)
	}
}

func TestStore_ConcurrentUpdates(t *testing.T) {
	s := newStore(t, newServer(t))
	c := mustClaim(t, s, 1)
	var wg sync.WaitGroup
	const n = 20
	for range n {
		wg.Go(func() {
			if _, err := s.Update(t.Context(), c, func(st *pb.TaskState) error { st.Failures++; return nil }); err != nil {
				t.Errorf("Update() = %v, want nil", err)
			}
		})
	}
	wg.Wait()
	if st, err := s.Read(t.Context(), "web"); err != nil || st.Failures != n {
		t.Errorf("Read() = %v, %v, want %d failures", st, err, n)
	}
}

func TestStore_LostResponse(t *testing.T) {
	srv := newServer(t)
	s := newStore(t, srv)
	c := mustClaim(t, s, 1)
	srv.lost.Store(true)
	before := srv.writes.Load()
	if st, err := s.Update(t.Context(), c, applied("a")); err != nil || st.AppliedInputs != "a" {
		t.Errorf("Update() = %v, %v, want the digest", st, err)
	}
	if n := srv.writes.Load() - before; n != 1 {
		t.Errorf("Update() wrote %d times, want once", n)
	}
}

func TestStore_ErrorOfChange(t *testing.T) {
	srv := newServer(t)
	s := newStore(t, srv)
	c := mustClaim(t, s, 1)
	before, want := srv.writes.Load(), errors.New("no")
	if _, err := s.Update(t.Context(), c, func(*pb.TaskState) error { return want }); !errors.Is(err, want) {
		t.Errorf("Update() = %v, want %v", err, want)
	}
	if _, err := s.Claim(t.Context(), c); err != nil || srv.writes.Load() != before {
		t.Errorf("an unchanged state was written %d times, %v, want 0 times", srv.writes.Load()-before, err)
	}
}

func TestStore_Unavailable(t *testing.T) {
	testutil.Bubble(t, func(t *testing.T) {
		srv := newServer(t)
		s := newStore(t, srv)
		c := mustClaim(t, s, 1)
		back := time.Now().Add(40 * time.Second)
		srv.before = func(*pb.Type) error {
			if time.Now().Before(back) {
				return status.Error(codes.Unavailable, "connection refused")
			}
			return nil
		}
		if _, err := s.Update(t.Context(), c, applied("a")); err != nil {
			t.Errorf("Update() while servers are away for 40 s = %v, want nil", err)
		}
		if late := time.Since(back); late > 2*maxPause {
			t.Errorf("Update() returned %v after the servers were back, want at most %v", late, 2*maxPause)
		}
		back = time.Now().Add(time.Hour)
		start := time.Now()
		_, err := s.Update(t.Context(), c, applied("b"))
		if d := time.Since(start); status.Code(err) != codes.Unavailable || d < RetryTime || d > RetryTime+2*maxPause {
			t.Errorf("Update() without servers = %v after %v, want Unavailable after %v", err, d, RetryTime)
		}
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		start = time.Now()
		if _, err = s.Update(ctx, c, applied("b")); !errors.Is(err, context.DeadlineExceeded) || time.Since(start) != time.Second {
			t.Errorf("Update() = %v after %v, want %v after 1s", err, time.Since(start), context.DeadlineExceeded)
		}
	})
}

func TestStore_Delete(t *testing.T) {
	s := newStore(t, newServer(t))
	c := mustClaim(t, s, 1)
	for range 2 {
		if err := s.Delete(t.Context(), c); err != nil {
			t.Errorf("Delete() = %v, want nil", err)
		}
	}
	if _, err := s.Read(t.Context(), "web"); !errors.Is(err, resource.ErrNotFound) {
		t.Errorf("Read() after Delete() = %v, want %v", err, resource.ErrNotFound)
	}
}

// TestStore_StaleDelete checks that a deletion which was delayed does not delete
// the state of a later claim.
func TestStore_StaleDelete(t *testing.T) {
	srv := newServer(t)
	s := newStore(t, srv)
	c := mustClaim(t, s, 5)
	srv.before = func(*pb.Type) error {
		srv.before = nil
		_, err := s.Claim(t.Context(), claimOf(7))
		return err
	}
	if err := s.Delete(t.Context(), c); !errors.Is(err, ErrReplaced) {
		t.Errorf("Delete() = %v, want %v", err, ErrReplaced)
	}
}

func TestStore_Permanent(t *testing.T) {
	srv := newServer(t)
	s := newStore(t, srv)
	if _, err := s.Claim(t.Context(), Claim{Task: "a b", Instance: "d", Epoch: 1}); !errors.Is(err, resource.ErrInvalid) {
		t.Errorf("Claim() of an invalid task = %v, want %v", err, resource.ErrInvalid)
	}
	if _, err := NewStore(StoreConfig{}); err == nil {
		t.Error("NewStore() without a client = nil, want an error")
	}
}
