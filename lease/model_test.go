// SPDX-License-Identifier: MPL-2.0

package lease

import (
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/wanfed/wanfed/api/pb"
	"github.com/wanfed/wanfed/resource"
)

// leaseModel is the sequential model of a Service.
type leaseModel struct {
	led     bool // a leader expires leases
	leases  map[string]*modelLease
	highest uint64 // token
}

type modelLease struct {
	holder      string
	token       uint64 // 0: free
	transitions uint64
	duration    time.Duration
	end         time.Time
}

// elect begins a leadership, in which leases have their full duration.
func (m *leaseModel) elect(now time.Time) {
	m.led = true
	for _, l := range m.leases {
		l.end = now.Add(l.duration)
	}
}

// advance expires leases.
func (m *leaseModel) advance(now time.Time) {
	for _, l := range m.leases {
		if m.led && !l.end.After(now) {
			l.holder, l.token = "", 0
		}
	}
}

// String returns the stored state.
func (m *leaseModel) String() string {
	var all []string
	for _, name := range slices.Sorted(maps.Keys(m.leases)) {
		l := m.leases[name]
		all = append(all, fmt.Sprintf("%s: holder %q, token %d, %d transitions", name, l.holder, l.token, l.transitions))
	}
	return strings.Join(all, "\n")
}

// state returns the stored state in the form of leaseModel.String.
func (f *fixture) state() string {
	f.Helper()
	all, _, err := f.store.List(f.Context(), resource.Strong, resource.Query{Type: Type})
	if err != nil {
		f.Fatal(err)
	}
	m := leaseModel{leases: map[string]*modelLease{}}
	for _, r := range all {
		l, err := resource.Decode[*pb.Lease](r)
		if err != nil {
			f.Fatal(err)
		}
		m.leases[r.GetId().GetName()] = &modelLease{holder: l.Holder, token: Token(r), transitions: l.Transitions}
	}
	return m.String()
}

// TestService_Model acquires, renews, releases, deletes and expires leases and
// changes the leader in random order. After each step, the result and the state
// are those of the model.
func TestService_Model(t *testing.T) {
	for seed := range uint64(10) {
		run(t, func(f *fixture) {
			rnd := rand.New(rand.NewPCG(seed, 2))
			m := &leaseModel{led: true, leases: map[string]*modelLease{}}
			counts := map[string]int{}
			for step := range 600 {
				time.Sleep(time.Duration(rnd.Int64N(int64(3 * time.Second))))
				m.advance(time.Now())
				what := f.step(m, rnd)
				counts[what]++
				synctest.Wait()
				m.advance(time.Now())
				if got, want := f.state(), m.String(); got != want {
					f.Fatalf("seed %d: state after step %d, %s = %s\n\nwant %s", seed, step, what, got, want)
				}
			}
			if !m.led {
				f.elect() // run ends a leadership
			}
			for _, what := range []string{"acquire", "acquire held", "acquire own", "acquire own without a leader", "renew true",
				"renew false", "renew without a leader", "release", "delete", "elect"} {
				if counts[what] < 3 {
					f.Errorf("seed %d: %q happened %d times, want at least 3", seed, what, counts[what])
				}
			}
		})
	}
}

// step makes a random step in the service and in the model, and returns its name
// and result.
func (f *fixture) step(m *leaseModel, rnd *rand.Rand) (what string) {
	f.Helper()
	now, name := time.Now(), fmt.Sprintf("l%d", rnd.IntN(3))
	l := m.leases[name]
	token := 1 + rnd.Uint64N(m.highest+1) // often of another lease or of an earlier holder
	if l != nil && l.token != 0 && rnd.IntN(4) > 0 {
		token = l.token
	}
	notLeader := func(err error) {
		f.Helper()
		if !errors.Is(resource.FromStatus(err), resource.ErrNotLeader) {
			f.Errorf("call without a leader = %v, want ErrNotLeader", err)
		}
	}
	switch n := rnd.IntN(20); {
	case n < 7:
		return f.stepAcquire(m, name, fmt.Sprintf("holder%d", rnd.IntN(3)), time.Duration(1+rnd.IntN(10))*time.Second)
	case n < 14:
		resp, err := f.service.Renew(f.Context(), &pb.RenewLeasesRequest{
			Renewals: []*pb.RenewLeasesRequest_Renewal{{Name: name, Token: token}},
		})
		if !m.led {
			notLeader(err)
			return "renew without a leader"
		}
		want := l != nil && l.token == token
		if want {
			l.end = now.Add(l.duration)
		}
		if got := err == nil && len(resp.Lost) == 0; got != want || err != nil {
			f.Errorf("Renew(%s, %d) = %t, %v, want %t, nil", name, token, got, err, want)
		}
		return fmt.Sprint("renew ", want)
	case n < 16:
		if _, err := f.service.Release(f.Context(), &pb.ReleaseLeaseRequest{Name: name, Token: token}); err != nil {
			f.Errorf("Release() = %v, want nil", err)
		}
		if l != nil && l.token == token {
			l.holder, l.token = "", 0
		}
		return "release"
	case n < 17:
		if _, err := f.store.Commit(f.Context(), resource.RemoveOp(resource.ID(Type, name), resource.AnyVersion)); err != nil {
			f.Errorf("delete of lease %s = %v, want nil", name, err)
		}
		delete(m.leases, name)
		return "delete"
	case m.led:
		f.end()
		m.led = false
		return "end"
	default:
		f.elect()
		m.elect(now)
		return "elect"
	}
}

func (f *fixture) stepAcquire(m *leaseModel, name, holder string, d time.Duration) (what string) {
	f.Helper()
	now, l := time.Now(), m.leases[name]
	resp, err := f.service.Acquire(f.Context(), &pb.AcquireLeaseRequest{Name: name, Holder: holder, Duration: durationpb.New(d)})
	want, what := uint64(0), "acquire held"
	switch {
	case l != nil && l.holder == holder && !m.led:
		if !errors.Is(resource.FromStatus(err), resource.ErrNotLeader) {
			f.Errorf("Acquire() of its own lease without a leader = %v, want ErrNotLeader", err)
		}
		return "acquire own without a leader"
	case l != nil && l.holder == holder:
		want, what = l.token, "acquire own"
		l.end = now.Add(l.duration)
	case l == nil || l.holder == "":
		if l == nil {
			l = &modelLease{}
			m.leases[name] = l
		}
		if resp.GetToken() <= m.highest {
			f.Errorf("Acquire() = token %d, want more than %d", resp.GetToken(), m.highest)
		}
		want, what, m.highest = resp.GetToken(), "acquire", resp.GetToken()
		*l = modelLease{holder, want, l.transitions + 1, d, now.Add(d)}
	}
	if resp.GetToken() != want || err != nil {
		f.Errorf("Acquire(%s, %s) = token %d, %v, want %d, nil", name, holder, resp.GetToken(), err, want)
	}
	return what
}
