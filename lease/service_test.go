// SPDX-License-Identifier: MPL-2.0

package lease

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/wanfed/wanfed/api/pb"
	"github.com/wanfed/wanfed/internal/testutil"
	"github.com/wanfed/wanfed/resource"
	"github.com/wanfed/wanfed/resource/resourcetest"
	"github.com/wanfed/wanfed/tlsutil"
)

// countingStore counts commits.
type countingStore struct {
	*resourcetest.Store
	commits atomic.Int64
	refuse  func(ops []*pb.Op) error // returns the error of a commit
}

func (s *countingStore) Commit(ctx context.Context, ops ...*pb.Op) ([]*pb.Resource, error) {
	s.commits.Add(1)
	if s.refuse != nil {
		if err := s.refuse(ops); err != nil {
			return nil, err
		}
	}
	return s.Store.Commit(ctx, ops...)
}

func allowAll(context.Context, resource.Verb, *pb.Type, string) error { return nil }

func newService(t testing.TB, b resource.Backend, confirm func(context.Context) error) *Service {
	t.Helper()
	s, err := NewService(ServiceConfig{
		Backend: b, Confirm: confirm, Allow: allowAll, Logger: slog.New(slog.DiscardHandler),
	})
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// fixture is a service over a store, in fake time.
type fixture struct {
	*testing.T
	store   *countingStore
	service *Service
	end     func() // ends the leadership
}

func run(t *testing.T, f func(f *fixture)) {
	t.Helper()
	testutil.Bubble(t, func(t *testing.T) {
		store := &countingStore{Store: resourcetest.NewStore()}
		defer store.Close()
		fx := &fixture{T: t, store: store}
		fx.service = newService(t, store, func(context.Context) error { return nil })
		fx.elect()
		defer func() { fx.end() }()
		f(fx)
	})
}

// elect begins a leadership.
func (f *fixture) elect() {
	ctx, cancel := context.WithCancel(f.Context())
	done := make(chan error)
	go func() { done <- f.service.Run(ctx) }()
	f.end = func() {
		f.Helper()
		cancel()
		if err := <-done; err != nil {
			f.Errorf("Run() = %v, want nil", err)
		}
	}
	synctest.Wait()
}

// acquire returns the token. 0: another holder has the lease.
func (f *fixture) acquire(holder string, d time.Duration) uint64 {
	f.Helper()
	resp, err := f.service.Acquire(f.Context(), &pb.AcquireLeaseRequest{Name: "l", Holder: holder, Duration: durationpb.New(d)})
	if err != nil {
		f.Fatalf("Acquire(%s) = %v, want nil", holder, err)
	}
	return resp.Token
}

func (f *fixture) renew(token uint64) (held bool) {
	f.Helper()
	resp, err := f.service.Renew(f.Context(), &pb.RenewLeasesRequest{
		Renewals: []*pb.RenewLeasesRequest_Renewal{{Name: "l", Token: token}},
	})
	if err != nil {
		f.Fatalf("Renew() = %v, want nil", err)
	}
	return len(resp.Lost) == 0
}

// wantHolder compares the stored holder.
func (f *fixture) wantHolder(want string) {
	f.Helper()
	synctest.Wait()
	r, err := f.store.Read(f.Context(), resource.Strong, resource.ID(Type, "l"))
	if err != nil {
		f.Fatal(err)
	}
	l, err := resource.Decode[*pb.Lease](r)
	if err != nil || l.Holder != want {
		f.Errorf("holder = %q, %v, want %q", l.GetHolder(), err, want)
	}
}

func TestService_RenewalsWriteNothingAndExpiryIsOneCommit(t *testing.T) {
	run(t, func(f *fixture) {
		token := f.acquire("a", 10*time.Second)
		if other := f.acquire("b", 10*time.Second); other != 0 {
			t.Errorf("Acquire(b) of a held lease = %d, want 0", other)
		}
		commits := f.store.commits.Load()
		for range 100 {
			time.Sleep(9 * time.Second)
			if !f.renew(token) {
				t.Fatal("Renew() = lost, want held")
			}
		}
		if again := f.acquire("a", 10*time.Second); again != token {
			t.Errorf("Acquire() by the holder = %d, want the token %d", again, token)
		}
		if n := f.store.commits.Load() - commits; n != 0 {
			t.Errorf("commits of 100 renewals = %d, want 0", n)
		}
		time.Sleep(10*time.Second - 2*confirmInterval) // the renewal has waited for a confirmation
		f.wantHolder("a")
		time.Sleep(2 * confirmInterval)
		f.wantHolder("")
		if n := f.store.commits.Load() - commits; n != 1 {
			t.Errorf("commits of the expiry = %d, want 1", n)
		}
		if f.renew(token) {
			t.Error("Renew() of an expired lease = held, want lost")
		}
	})
}

func TestService_TokensGrow(t *testing.T) {
	run(t, func(f *fixture) {
		var last uint64
		for i, end := range []func(token uint64){
			func(token uint64) {
				_, err := f.service.Release(f.Context(), &pb.ReleaseLeaseRequest{Name: "l", Token: token})
				if err != nil {
					t.Error(err)
				}
			},
			func(uint64) { time.Sleep(time.Minute) },
			func(uint64) {
				if _, err := f.store.Commit(f.Context(), resource.RemoveOp(resource.ID(Type, "l"), resource.AnyVersion)); err != nil {
					t.Error(err)
				}
			},
			func(token uint64) { f.end(); f.elect(); time.Sleep(time.Minute) },
			func(uint64) {},
		} {
			token := f.acquire([]string{"a", "b"}[i%2], 10*time.Second)
			if token <= last {
				t.Errorf("token %d = %d, want more than %d", i, token, last)
			}
			last = token
			end(token)
			synctest.Wait()
			if f.renew(token) && i < 4 {
				t.Errorf("Renew() after end %d = held, want lost", i)
			}
		}
		if _, err := f.service.Release(f.Context(), &pb.ReleaseLeaseRequest{Name: "l", Token: last - 1}); err != nil {
			t.Error(err)
		}
		f.wantHolder("a") // a release with an old token has no effect
	})
}

func TestService_NewLeaderGrantsFullDuration(t *testing.T) {
	run(t, func(f *fixture) {
		token := f.acquire("a", 10*time.Second)
		for range 20 {
			time.Sleep(9 * time.Second)
			f.end()
			if _, err := f.service.Renew(f.Context(), &pb.RenewLeasesRequest{}); !errors.Is(resource.FromStatus(err), resource.ErrNotLeader) {
				t.Errorf("Renew() without leadership = %v, want ErrNotLeader", err)
			}
			f.elect()
			f.wantHolder("a")
		}
		time.Sleep(9 * time.Second)
		f.wantHolder("a")
		if !f.renew(token) {
			t.Error("Renew() = lost, want held")
		}
		time.Sleep(11 * time.Second)
		f.wantHolder("")
	})
}

func TestService_RenewNeedsConfirmation(t *testing.T) {
	run(t, func(f *fixture) {
		token := f.acquire("a", 10*time.Second)
		f.service.deadlines.cfg.Confirm = func(context.Context) error { return resource.ErrNotLeader }
		_, err := f.service.Renew(f.Context(), &pb.RenewLeasesRequest{
			Renewals: []*pb.RenewLeasesRequest_Renewal{{Name: "l", Token: token}},
		})
		if !errors.Is(resource.FromStatus(err), resource.ErrNotLeader) {
			t.Errorf("Renew() at a leader that a majority does not confirm = %v, want ErrNotLeader", err)
		}
	})
}

func TestService_RefusesInvalidRequests(t *testing.T) {
	run(t, func(f *fixture) {
		for _, req := range []*pb.AcquireLeaseRequest{
			{Name: "l", Duration: durationpb.New(time.Minute)},
			{Name: "l", Holder: "a"},
			{Name: "l", Holder: "a", Duration: durationpb.New(25 * time.Hour)},
			{Name: "L/", Holder: "a", Duration: durationpb.New(time.Minute)},
		} {
			if _, err := f.service.Acquire(f.Context(), req); !errors.Is(resource.FromStatus(err), resource.ErrInvalid) {
				t.Errorf("Acquire(%v) = %v, want ErrInvalid", req, err)
			}
		}
		renewals := make([]*pb.RenewLeasesRequest_Renewal, maxRenewals+1)
		for _, r := range [][]*pb.RenewLeasesRequest_Renewal{renewals, {{Name: "l"}}} {
			_, err := f.service.Renew(f.Context(), &pb.RenewLeasesRequest{Renewals: r})
			if !errors.Is(resource.FromStatus(err), resource.ErrInvalid) {
				t.Errorf("Renew() of %d renewals = %v, want ErrInvalid", len(r), err)
			}
		}
	})
}

// A sync daemon uses only leases with SyncPrefix.
func TestService_NamesOfSyncDaemons(t *testing.T) {
	run(t, func(f *fixture) {
		for role, names := range map[tlsutil.Role]map[string]bool{
			tlsutil.RoleSync:     {"sync.task.web": true, "sync": false, "syncs.web": false, "controllers": false},
			tlsutil.RoleOperator: {"sync.task.db": true, "controllers": true},
		} {
			ctx := tlsutil.WithPeer(f.Context(), tlsutil.Peer{Role: role, Node: "n1", DC: "dc1"})
			for name, allowed := range names {
				_, acquire := f.service.Acquire(ctx, &pb.AcquireLeaseRequest{Name: name, Holder: "a", Duration: durationpb.New(time.Minute)})
				_, renew := f.service.Renew(ctx, &pb.RenewLeasesRequest{
					Renewals: []*pb.RenewLeasesRequest_Renewal{{Name: name, Token: 1}}})
				_, release := f.service.Release(ctx, &pb.ReleaseLeaseRequest{Name: name, Token: 1})
				for call, err := range map[string]error{"Acquire": acquire, "Renew": renew, "Release": release} {
					if denied := errors.Is(resource.FromStatus(err), resource.ErrDenied); denied == allowed {
						t.Errorf("%s(%s) by a %s = %v, want allowed = %v", call, name, role, err, allowed)
					}
				}
			}
		}
	})
}

// BenchmarkDeadlines_Renew renews one of 10000 leases, without a call over the
// network.
func BenchmarkDeadlines_Renew(b *testing.B) {
	store := resourcetest.NewStore()
	defer store.Close()
	s := newService(b, store, func(context.Context) error { return nil })
	ctx, cancel := context.WithCancel(b.Context())
	done := make(chan error)
	go func() { done <- s.Run(ctx) }()
	for !s.ready() {
		time.Sleep(time.Millisecond)
	}
	names, tokens := make([]string, 10000), make([]uint64, 10000)
	for i := range names {
		names[i] = fmt.Sprintf("lease-%d", i)
		r, err := resource.New(Type, names[i], &pb.Lease{Holder: "a", Duration: durationpb.New(time.Hour)})
		if err != nil {
			b.Fatal(err)
		}
		out, err := store.Commit(ctx, resource.PutOp(r, ""))
		if err != nil {
			b.Fatal(err)
		}
		tokens[i] = out[0].ModifyIndex
		s.deadlines.Set(out[0])
	}
	for i := 0; b.Loop(); i = (i + 1) % len(names) {
		if ok, err := s.deadlines.renew(ctx, Renewal{names[i], tokens[i]}); !ok || err != nil {
			b.Fatalf("renew() = %t, %v, want true, nil", ok, err)
		}
	}
	cancel()
	<-done
}

func (s *Service) ready() bool {
	s.deadlines.mu.Lock()
	defer s.deadlines.mu.Unlock()
	return s.deadlines.entries != nil
}
