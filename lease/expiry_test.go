// SPDX-License-Identifier: MPL-2.0

package lease

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"strconv"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/wanfed/wanfed/api/pb"
	"github.com/wanfed/wanfed/resource"
)

// many is a set of leases in the store of a fixture, with the times of their
// last renewals.
type many struct {
	*fixture
	renewals []*pb.RenewLeasesRequest_Renewal
	renewed  []time.Time
	duration time.Duration
}

func (f *fixture) acquireMany(n int, d time.Duration) *many {
	f.Helper()
	m := &many{fixture: f, duration: d, renewed: make([]time.Time, n)}
	for i := range n {
		name := fmt.Sprintf("l%d", i)
		resp, err := f.service.Acquire(f.Context(), &pb.AcquireLeaseRequest{
			Name: name, Holder: "a", Duration: durationpb.New(d),
		})
		if err != nil || resp.Token == 0 {
			f.Fatalf("Acquire(%s) = %v, %v, want a token", name, resp, err)
		}
		m.renewals = append(m.renewals, &pb.RenewLeasesRequest_Renewal{Name: name, Token: resp.Token})
		m.renewed[i] = time.Now()
	}
	return m
}

// renew renews the leases from i to j. Without a leader it does nothing.
func (m *many) renew(i, j int) {
	m.Helper()
	now := time.Now()
	resp, err := m.service.Renew(m.Context(), &pb.RenewLeasesRequest{Renewals: m.renewals[i:j]})
	switch {
	case errors.Is(resource.FromStatus(err), resource.ErrNotLeader):
		return
	case err != nil || len(resp.Lost) > 0:
		m.Fatalf("Renew() = lost %v, %v, want none, nil", resp.GetLost(), err)
	}
	for k := i; k < j; k++ {
		m.renewed[k] = now
	}
}

// leasesEnv sets the number of leases of TestService_ManyLeases.
const leasesEnv = "WANFED_LEASES"

// TestService_ManyLeases renews leases every 5 s in 50 parts, and changes the
// leader 20 times, with up to 3 s without a leader. No lease expires early, and
// nothing is written. Then the holders stop: each lease expires within 1 s of its
// deadline, and a commit ends several.
func TestService_ManyLeases(t *testing.T) {
	const parts, interval = 50, 5 * time.Second
	n := 1000
	if text := os.Getenv(leasesEnv); text != "" {
		var err error
		if n, err = strconv.Atoi(text); err != nil {
			t.Fatal(err)
		}
	}
	run(t, func(f *fixture) {
		m := f.acquireMany(n, 4*interval)
		commits := f.store.commits.Load()
		var elected time.Time // the last election
		part := 0
		renewFor := func(d time.Duration) {
			for end := time.Now().Add(d); time.Now().Before(end); part = (part + 1) % parts {
				m.renew(part*n/parts, (part+1)*n/parts)
				time.Sleep(interval / parts)
			}
		}
		r := rand.New(rand.NewPCG(1, 1))
		for range 20 {
			renewFor(time.Duration(r.Int64N(int64(2 * interval))))
			f.end()
			renewFor(time.Duration(r.Int64N(int64(3 * time.Second))))
			f.elect()
			elected = time.Now()
		}
		renewFor(2 * interval)
		if got := f.store.commits.Load() - commits; got != 0 {
			t.Fatalf("commits while the leases were renewed = %d, want 0", got)
		}

		w, err := f.store.Watch(resource.Query{Type: Type})
		if err != nil {
			t.Fatal(err)
		}
		defer w.Close()
		ctx, cancel := context.WithTimeout(f.Context(), time.Minute)
		defer cancel()
		for free := 0; free < n; {
			ev, err := w.Next(ctx)
			if err != nil {
				t.Fatalf("after the expiry of %d leases: %v", free, err)
			}
			lease := ev.GetUpsert().GetResource()
			if lease == nil || Token(lease) != 0 {
				continue
			}
			free++
			var i int
			if _, err := fmt.Sscanf(lease.Id.Name, "l%d", &i); err != nil {
				t.Fatal(err)
			}
			deadline := m.renewed[i].Add(m.duration)
			if elected.After(m.renewed[i]) {
				deadline = elected.Add(m.duration)
			}
			if late := time.Since(deadline); late < 0 || late > time.Second {
				t.Fatalf("lease %s expired %v after its deadline, want 0 to 1 s", lease.Id.Name, late)
			}
		}
		if got := f.store.commits.Load() - commits; got > int64(n/maxBatch+2*parts) {
			t.Errorf("commits of the expiries = %d, want at most %d", got, n/maxBatch+2*parts)
		}
	})
}

// TestService_ExpiresOthersAfterConflict lets 300 leases expire at one time,
// while each commit that contains one of three of them has a conflict.
func TestService_ExpiresOthersAfterConflict(t *testing.T) {
	run(t, func(f *fixture) {
		m := f.acquireMany(300, 10*time.Second)
		bad := map[string]bool{"l7": true, "l130": true, "l131": true}
		var mended atomic.Bool
		f.store.refuse = func(ops []*pb.Op) error {
			for _, op := range ops {
				if !mended.Load() && bad[op.GetPut().GetResource().GetId().GetName()] {
					return resource.ErrConflict
				}
			}
			return nil
		}
		m.renew(0, 300)
		time.Sleep(10*time.Second + confirmInterval)
		held := func() (n int) {
			synctest.Wait()
			all, _, err := f.store.List(f.Context(), resource.Strong, resource.Query{Type: Type})
			if err != nil {
				t.Fatal(err)
			}
			for _, r := range all {
				if Token(r) != 0 {
					n++
				}
			}
			return n
		}
		if got := held(); got != 3 {
			t.Errorf("held leases after the deadline = %d, want the 3 with conflicts", got)
		}
		mended.Store(true)
		time.Sleep(expireRetry)
		if got := held(); got != 0 {
			t.Errorf("held leases after the retry = %d, want 0", got)
		}
	})
}
