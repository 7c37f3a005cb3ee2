// SPDX-License-Identifier: MPL-2.0

package lease

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/wanfed/wanfed/api/pb"
	"github.com/wanfed/wanfed/internal/testutil"
	"github.com/wanfed/wanfed/resource"
	"github.com/wanfed/wanfed/resource/resourcetest"
)

// group is a datacenter of three servers with one store. The leader changes.
// An earlier leader may run its service for some time after it has lost the
// leadership. Its commits and confirmations then fail.
type group struct {
	store    *resourcetest.Store
	services []*Service

	mu     sync.Mutex
	leader int // -1: none
}

func newGroup(t *testing.T) *group {
	g := &group{store: resourcetest.NewStore(), leader: -1}
	for node := range 3 {
		m := member{g.store, g, node}
		g.services = append(g.services, newService(t, m, m.confirm))
	}
	return g
}

// member is the store as one server sees it.
type member struct {
	*resourcetest.Store
	g    *group
	node int
}

func (g *group) leads(node int) bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.leader == node
}

func (m member) Commit(ctx context.Context, ops ...*pb.Op) ([]*pb.Resource, error) {
	m.g.mu.Lock()
	defer m.g.mu.Unlock()
	if m.g.leader != m.node {
		return nil, resource.ErrNotLeader
	}
	return m.Store.Commit(ctx, ops...)
}

func (m member) confirm(context.Context) error {
	if !m.g.leads(m.node) {
		return resource.ErrNotLeader
	}
	return nil
}

// flap changes the leader until ctx ends. longest bounds a leadership, late the
// time for which an earlier leader continues, and gap the time without a leader.
func (g *group) flap(ctx context.Context, r *rand.Rand, longest, late, gap time.Duration) {
	var runs sync.WaitGroup
	defer runs.Wait()
	var joined [3]chan struct{}
	for ctx.Err() == nil {
		node := r.IntN(len(g.services))
		if c := joined[node]; c != nil {
			<-c // a server joins the services of its earlier leadership
		}
		g.mu.Lock()
		g.leader = node
		g.mu.Unlock()
		rctx, stop := context.WithCancel(ctx)
		done := make(chan struct{})
		joined[node] = done
		runs.Go(func() {
			_ = g.services[node].Run(rctx)
			close(done)
		})
		sleep(ctx, time.Duration(r.Int64N(int64(longest))))
		g.mu.Lock()
		g.leader = -1
		g.mu.Unlock()
		rest := time.Duration(r.Int64N(int64(late)))
		runs.Go(func() {
			sleep(ctx, rest)
			stop()
		})
		sleep(ctx, time.Duration(r.Int64N(int64(gap))))
	}
}

func sleep(ctx context.Context, d time.Duration) {
	select {
	case <-time.After(d):
	case <-ctx.Done():
	}
}

// process is a candidate that may be stopped. While it is stopped, its calls
// and its work do not continue.
type process struct {
	g     *group
	jumps atomic.Int64 // sum of the jumps of its clock

	mu      sync.Mutex
	rand    *rand.Rand
	resumed chan struct{} // closed unless the process is stopped
}

// newProcess returns a process with an Elector whose clock has a wrong rate and
// jumps.
func newProcess(t *testing.T, g *group, i int, r *rand.Rand) (*process, *Elector) {
	t.Helper()
	p := &process{g: g, rand: r, resumed: make(chan struct{})}
	close(p.resumed)
	e, err := NewElector(ElectorConfig{Client: p, Name: "l", Holder: fmt.Sprint(i), Duration: 4 * time.Second})
	if err != nil {
		t.Fatal(err)
	}
	begin, rate := time.Now(), 0.92+r.Float64()*0.16
	e.now = func() time.Time {
		return begin.Add(time.Duration(float64(time.Since(begin))*rate) + time.Duration(p.jumps.Load()))
	}
	return p, e
}

// disturb stops the process and lets its clock jump, until ctx ends.
func (p *process) disturb(ctx context.Context) {
	for ctx.Err() == nil {
		sleep(ctx, time.Duration(p.random(int64(20*time.Second))))
		p.stop(ctx, time.Duration(p.random(int64(5*time.Second))))
		sleep(ctx, time.Duration(p.random(int64(20*time.Second))))
		p.jumps.Add(p.random(int64(5 * time.Second)))
	}
}

func (p *process) stop(ctx context.Context, d time.Duration) {
	c := make(chan struct{})
	p.mu.Lock()
	p.resumed = c
	p.mu.Unlock()
	sleep(ctx, d)
	close(c)
}

// proceed waits while the process is stopped.
func (p *process) proceed(ctx context.Context) {
	p.mu.Lock()
	c := p.resumed
	p.mu.Unlock()
	select {
	case <-c:
	case <-ctx.Done():
	}
}

func (p *process) random(n int64) int64 {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.rand.Int64N(n)
}

// call makes a call at a random server, with delays in both directions.
func (p *process) call(ctx context.Context, f func(s *Service) error) error {
	delay := func() {
		sleep(ctx, time.Duration(p.random(int64(50*time.Millisecond))))
		p.proceed(ctx)
	}
	delay()
	if ctx.Err() != nil {
		return ctx.Err()
	}
	err := f(p.g.services[p.random(int64(len(p.g.services)))])
	delay()
	if p.random(20) == 0 {
		return fmt.Errorf("the response was lost: %w", resource.ErrUnknownOutcome)
	}
	return resource.FromStatus(err)
}

func (p *process) Acquire(ctx context.Context, name, holder string, d time.Duration) (g Grant, err error) {
	err = p.call(ctx, func(s *Service) error {
		resp, err := s.Acquire(ctx, &pb.AcquireLeaseRequest{Name: name, Holder: holder, Duration: durationpb.New(d)})
		if err == nil {
			g = Grant{resp.Token, holder, d}
		}
		return err
	})
	return g, err
}

func (p *process) Renew(ctx context.Context, name string, token uint64) (held bool, err error) {
	err = p.call(ctx, func(s *Service) error {
		resp, err := s.Renew(ctx, &pb.RenewLeasesRequest{
			Renewals: []*pb.RenewLeasesRequest_Renewal{{Name: name, Token: token}},
		})
		held = err == nil && len(resp.Lost) == 0
		return err
	})
	return held, err
}

func (p *process) Release(ctx context.Context, name string, token uint64) error {
	return p.call(ctx, func(s *Service) error {
		_, err := s.Release(ctx, &pb.ReleaseLeaseRequest{Name: name, Token: token})
		return err
	})
}

func (p *process) WaitFree(ctx context.Context, name string) error {
	for ctx.Err() == nil {
		r, err := p.g.store.Read(ctx, resource.Eventual, resource.ID(Type, name))
		if err != nil || Token(r) == 0 {
			return nil
		}
		sleep(ctx, 10*time.Millisecond)
	}
	return ctx.Err()
}

// guarded is a system that receives the steps of the holders.
type guarded struct {
	mu      sync.Mutex
	highest uint64
	holders map[uint64]int // by token
	steps   int
	faults  []string
}

// step is called by a process directly after it has checked its context.
func (g *guarded) step(process int, token uint64) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.steps++
	if holder, ok := g.holders[token]; ok && holder != process {
		g.faults = append(g.faults, fmt.Sprintf("processes %d and %d have the token %d", holder, process, token))
	}
	g.holders[token] = process
	if token < g.highest {
		g.faults = append(g.faults, fmt.Sprintf("a step with token %d after %d", token, g.highest))
	}
	g.highest = max(g.highest, token)
}

// TestElector_OneHolder runs five candidates while the leader changes, processes
// stop for up to 5 s, responses are lost, and the clocks of the processes jump by
// up to 5 s and run at rates that differ by up to 8%. No process takes a step after one with a higher
// token.
func TestElector_OneHolder(t *testing.T) {
	for _, longest := range []time.Duration{20 * time.Millisecond, time.Second, 30 * time.Second} {
		t.Run(longest.String(), func(t *testing.T) {
			for seed := range uint64(5) {
				testOneHolder(t, seed, longest)
			}
		})
	}
}

func testOneHolder(t *testing.T, seed uint64, longest time.Duration) {
	testutil.Bubble(t, func(t *testing.T) {
		g := newGroup(t)
		defer g.store.Close()
		ctx, cancel := context.WithTimeout(t.Context(), 3*time.Minute)
		defer cancel()
		var all sync.WaitGroup
		all.Go(func() { g.flap(ctx, rand.New(rand.NewPCG(seed, 0)), longest, 5*time.Second, time.Second/2) })
		target := &guarded{holders: map[uint64]int{}}
		for i := range 5 {
			p, e := newProcess(t, g, i, rand.New(rand.NewPCG(seed, uint64(i+1))))
			all.Go(func() { p.disturb(ctx) })
			all.Go(func() {
				err := e.Run(ctx, func(h *Held) error {
					for {
						p.proceed(ctx)
						if h.Err() != nil {
							return nil
						}
						target.step(i, h.Token())
						time.Sleep(time.Duration(1 + p.random(int64(20*time.Millisecond))))
					}
				})
				if err != nil {
					t.Errorf("Run() = %v, want nil", err)
				}
			})
		}
		all.Wait()
		if len(target.faults) > 0 || len(target.holders) < 2 && longest > 5*time.Second {
			t.Errorf("seed %d: %d steps with %d tokens, faults: %s; want no fault and at least 2 tokens", seed,
				target.steps, len(target.holders), strings.Join(target.faults, "; "))
		}
	})
}

func TestHeld_EndsAtFirstCheckAfterStop(t *testing.T) {
	testutil.Bubble(t, func(t *testing.T) {
		now := time.Now()
		h := newHeld(t.Context(), func() time.Time { return now }, Grant{Token: 1, Duration: 10 * time.Second}, now)
		defer h.timer.Stop()
		now = now.Add(9*time.Second - 1)
		if err := h.Err(); err != nil {
			t.Errorf("Err() before the deadline = %v, want nil", err)
		}
		now = now.Add(5 * time.Second) // the timers have not run
		if err := h.Err(); !errors.Is(err, context.Canceled) || !errors.Is(context.Cause(h), ErrLost) {
			t.Errorf("Err() after a stop of 5 s = %v with cause %v, want Canceled with ErrLost", err, context.Cause(h))
		}
		h.extend(now)
		if h.Err() == nil {
			t.Error("Err() after a late renewal = nil, want an error")
		}
	})
}

func TestElector_ReturnsResultOfWorkAndReleases(t *testing.T) {
	testutil.Bubble(t, func(t *testing.T) {
		store := resourcetest.NewStore()
		defer store.Close()
		g := &group{store: store, leader: 0}
		m := member{store, g, 0}
		g.services = []*Service{newService(t, m, m.confirm)}
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error)
		go func() { done <- g.services[0].Run(ctx) }()
		synctest.Wait()
		p := &process{g: g, rand: rand.New(rand.NewPCG(1, 1)), resumed: make(chan struct{})}
		close(p.resumed)
		e, err := NewElector(ElectorConfig{Client: p, Name: "l", Holder: "a"})
		if err != nil {
			t.Fatal(err)
		}
		want := errors.New("result")
		if err := e.Run(ctx, func(h *Held) error {
			time.Sleep(time.Minute) // several renewals
			return errors.Join(h.Err(), want)
		}); !errors.Is(err, want) || errors.Is(err, context.Canceled) {
			t.Errorf("Run() = %v, want the error of work", err)
		}
		r, err := store.Read(ctx, resource.Strong, resource.ID(Type, "l"))
		if err != nil || Token(r) != 0 {
			t.Errorf("lease after Run() = %v, %v, want a free lease", r, err)
		}
		cancel()
		<-done
	})
}
