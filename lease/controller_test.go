// SPDX-License-Identifier: MPL-2.0

package lease

import (
	"context"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/protobuf/types/known/wrapperspb"

	"github.com/wanfed/wanfed/api/pb"
	"github.com/wanfed/wanfed/controller"
	"github.com/wanfed/wanfed/controller/controllertest"
	"github.com/wanfed/wanfed/internal/testutil"
	"github.com/wanfed/wanfed/resource"
)

// holderClient checks at each write that its process has the lease.
type holderClient struct {
	pb.ResourceServiceClient
	g      *group
	i      int
	writes atomic.Int64
	faults atomic.Int64
}

func (c *holderClient) Write(
	ctx context.Context, in *pb.WriteRequest, opts ...grpc.CallOption,
) (*pb.WriteResponse, error) {
	c.writes.Add(1)
	r, err := c.g.store.Read(ctx, resource.Strong, resource.ID(Type, "l"))
	l, derr := resource.Decode[*pb.Lease](r)
	if err != nil || derr != nil || !strings.HasPrefix(l.Holder, fmt.Sprintf("%d/", c.i)) {
		c.faults.Add(1)
	}
	return c.ResourceServiceClient.Write(ctx, in, opts...)
}

// TestElector_RunsControllersOfOneProcess runs one controller in three processes
// for a minute, while the leader of the servers changes every 10 ms on average.
// The processes stop for up to 5 s, and their clocks jump. A process writes only
// while the store has it as the holder of the lease.
func TestElector_RunsControllersOfOneProcess(t *testing.T) {
	typ := &pb.Type{Group: "test", GroupVersion: "v1", Kind: "Target"}
	for seed := range uint64(2) {
		testutil.Bubble(t, func(t *testing.T) {
			s := controllertest.New(t, resource.Registration{Type: typ, Message: &wrapperspb.StringValue{}})
			s.Write(typ, "x", wrapperspb.String(""))
			g := newGroup(t)
			defer g.store.Close()
			ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
			defer cancel()
			var all sync.WaitGroup
			all.Go(func() {
				g.flap(ctx, rand.New(rand.NewPCG(seed, 0)), 20*time.Millisecond, 20*time.Millisecond, time.Nanosecond)
			})
			var clients []*holderClient
			for i := range 3 {
				p, e := newProcess(t, g, i, rand.New(rand.NewPCG(seed, uint64(i+1))))
				all.Go(func() { p.disturb(ctx) })
				c := &holderClient{ResourceServiceClient: s.Client, g: g, i: i}
				clients = append(clients, c)
				rt, err := controller.New(controller.Config{
					Client: c, Elector: e, Logger: slog.New(slog.DiscardHandler),
				}, controller.Controller{
					Name: "c", Managed: typ,
					Reconcile: func(ctx context.Context, env *controller.Env, id *pb.ID) (controller.Result, error) {
						p.proceed(ctx)
						value := wrapperspb.String(fmt.Sprint(i, c.writes.Load()))
						r, err := resource.New(typ, id.Name, value)
						if err != nil {
							return controller.Result{}, err
						}
						r.Id, r.Generation = id, ""
						_, _ = env.Client.Write(ctx, &pb.WriteRequest{Resource: r}) // fails after the end of the election
						time.Sleep(time.Duration(1 + p.random(int64(20*time.Millisecond))))
						return controller.Result{RequeueNow: true}, nil
					},
				})
				if err != nil {
					t.Fatal(err)
				}
				all.Go(func() {
					if err := rt.Run(ctx); err != nil {
						t.Errorf("Run() = %v, want nil", err)
					}
				})
			}
			all.Wait()
			var writes, faults int64
			for _, c := range clients {
				writes, faults = writes+c.writes.Load(), faults+c.faults.Load()
			}
			// The number depends on the order of goroutines: 27 to 2,539 were seen.
			if faults != 0 || writes < 10 {
				t.Errorf("seed %d: %d of %d writes without the lease, want 0 of at least 10", seed, faults, writes)
			}
		})
	}
}

// TestElector_RunWhileLeaderKeepsLease has a function that returns while its
// process is elected.
func TestElector_RunWhileLeaderKeepsLease(t *testing.T) {
	testutil.Bubble(t, func(t *testing.T) {
		g := newGroup(t)
		defer g.store.Close()
		g.leader = 0
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		go func() { _ = g.services[0].Run(ctx) }()
		synctest.Wait()
		p := &process{g: g, rand: rand.New(rand.NewPCG(1, 1)), resumed: make(chan struct{})}
		close(p.resumed)
		e, err := NewElector(ElectorConfig{Client: p, Name: "l", Holder: "a"})
		if err != nil {
			t.Fatal(err)
		}
		var calls atomic.Int64
		done := make(chan error)
		go func() {
			done <- e.RunWhileLeader(ctx, func(context.Context) error {
				calls.Add(1)
				return nil
			})
		}()
		time.Sleep(time.Minute)
		if r, err := g.store.Read(ctx, resource.Strong, resource.ID(Type, "l")); err != nil || Token(r) == 0 || calls.Load() != 1 {
			t.Errorf("lease after %d calls = %v, %v, want held after one call", calls.Load(), r, err)
		}
		cancel()
		if err := <-done; err != nil {
			t.Errorf("RunWhileLeader() = %v, want nil", err)
		}
		synctest.Wait()
	})
}
