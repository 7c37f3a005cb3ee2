// SPDX-License-Identifier: MPL-2.0

package controller_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/protobuf/types/known/wrapperspb"

	"github.com/wanfed/wanfed/api/pb"
	"github.com/wanfed/wanfed/controller"
	"github.com/wanfed/wanfed/controller/controllertest"
	"github.com/wanfed/wanfed/internal/testutil"
	"github.com/wanfed/wanfed/resource"
)

func TestNew_NamesEveryFault(t *testing.T) {
	bad := controller.Controller{
		Workers: -1, Watches: []controller.Watch{{}}, Events: []controller.Source{{}},
		Indexes: []*controller.Index{nil, controller.By(routeType, "r", words)},
		Retry:   controller.Retry{Min: time.Hour, Max: time.Second}, Placement: 7,
	}
	_, err := controller.New(controller.Config{}, bad, noop("a"), noop("a"))
	for _, want := range []string{
		"Config.Client", "Name: is required", "Managed", "Reconcile", "Workers", "Watches[0].Type", "Watches[0].Map",
		"Events[0]", "Indexes[0]", "Indexes[1]: test/v1/Route must be", "Retry", "Placement", "used twice",
	} {
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("New() = %v, want an error with %q", err, want)
		}
	}
}

// history returns random changes of targets and routes, each of which keeps the
// resources of other changes.
func history(rnd *rand.Rand) []func(*controllertest.Service) {
	var steps []func(*controllertest.Service)
	for range 60 {
		name := fmt.Sprintf("n%d", rnd.IntN(4))
		to := fmt.Sprintf("n%d n%d", rnd.IntN(4), rnd.IntN(4))
		switch rnd.IntN(6) {
		case 0:
			steps = append(steps, func(s *controllertest.Service) { s.Delete(resource.ID(targetType, name)) })
		case 1:
			steps = append(steps, func(s *controllertest.Service) { s.Delete(resource.ID(routeType, name)) })
		case 2, 3:
			steps = append(steps, func(s *controllertest.Service) { s.Write(targetType, name, wrapperspb.String(to)) })
		default:
			steps = append(steps, func(s *controllertest.Service) { s.Write(routeType, name, wrapperspb.String(to)) })
		}
	}
	return steps
}

// TestRuntime_AnyOrderEndsInTheSameState compares a runtime that processes
// changes at random times, with restarts, leader changes, failures and ended
// watches, with the reconcile of each resource in order after all changes.
func TestRuntime_AnyOrderEndsInTheSameState(t *testing.T) {
	for seed := range uint64(30) {
		testutil.Bubble(t, func(t *testing.T) {
			rnd := rand.New(rand.NewPCG(seed, 1))
			steps := history(rnd)

			ordered := newService(t)
			for _, step := range steps {
				step(ordered)
			}
			for i := range 4 {
				if _, err := ordered.Reconcile(aggregate(), resource.ID(targetType, fmt.Sprintf("n%d", i))); err != nil {
					t.Fatalf("Reconcile() = %v, want nil", err)
				}
			}
			want := state(ordered, computedType)

			s := newService(t)
			election := controllertest.NewElection()
			flaky := aggregate()
			flaky.Workers, flaky.Retry.Max = 3, time.Second
			var calls atomic.Int64
			flaky.Reconcile = func(ctx context.Context, env *controller.Env, id *pb.ID) (controller.Result, error) {
				switch n := calls.Add(1); {
				case n%11 == 0:
					panic("one of eleven")
				case n%5 == 0:
					return controller.Result{}, errors.New("one of five")
				}
				return reconcileAggregate(ctx, env, id)
			}
			w := &watches{ResourceServiceClient: s.Client}
			start := func(name string) func() {
				cfg := quiet
				cfg.Client, cfg.Elector = w, election.Candidate(name)
				_, stop := s.Start(cfg, flaky)
				return stop
			}
			start("a")
			stop := start("b")
			for _, step := range steps {
				time.Sleep(time.Duration(rnd.IntN(20)) * time.Millisecond)
				switch rnd.IntN(10) {
				case 0:
					w.end()
				case 1:
					election.Elect([]string{"a", "b", ""}[rnd.IntN(3)])
				case 2:
					stop()
					stop = start("b")
				}
				step(s)
			}
			election.Elect("a")
			time.Sleep(time.Minute)
			synctest.Wait()
			if got := state(s, computedType); got != want {
				t.Errorf("seed %d: computed = %q, want %q", seed, got, want)
			}
		})
	}
}

// TestRuntime_LeadershipFlaps changes the leader every 10 ms for a minute.
// Reconciles, initializers, mappers and sources continue for a while after the
// end of their context.
func TestRuntime_LeadershipFlaps(t *testing.T) {
	testutil.Bubble(t, func(t *testing.T) {
		s := newService(t)
		for i := range 5 {
			s.Write(targetType, fmt.Sprintf("t%d", i), wrapperspb.String(""))
		}
		var active atomic.Pointer[string] // name of the process whose instance runs
		var calls, overlaps, starts atomic.Int64
		election := controllertest.NewElection()
		for _, name := range []string{"a", "b", "c"} {
			enter := func() {
				calls.Add(1)
				if other := active.Swap(&name); other != nil && *other != name {
					overlaps.Add(1)
				}
				time.Sleep(rand.N(7 * time.Millisecond)) // regardless of the context
				if now := active.Load(); now == nil || *now != name {
					overlaps.Add(1)
				}
			}
			c := noop("c")
			c.Workers = 4
			c.Initialize = func(context.Context, *controller.Env) error {
				starts.Add(1)
				active.Store(&name)
				enter()
				return nil
			}
			c.Reconcile = func(context.Context, *controller.Env, *pb.ID) (controller.Result, error) {
				enter()
				return controller.Result{RequeueNow: true}, nil
			}
			c.Watches = []controller.Watch{{Type: routeType, Map: func(*controller.Env, *pb.Resource) ([]*pb.ID, error) {
				enter()
				return nil, nil
			}}}
			cfg := quiet
			cfg.Elector = election.Candidate(name)
			s.Start(cfg, c)
		}
		for i := range 6000 {
			election.Elect([]string{"a", "b", "c", ""}[rand.IntN(4)])
			if i%50 == 0 {
				s.Write(routeType, "r", wrapperspb.String(fmt.Sprint(i)))
			}
			time.Sleep(10 * time.Millisecond)
		}
		if overlaps.Load() != 0 || starts.Load() < 1000 || calls.Load() < 5000 {
			t.Errorf("overlaps = %d of %d calls in %d instances, want 0 of at least 5000 in at least 1000",
				overlaps.Load(), calls.Load(), starts.Load())
		}
	})
}

func TestRuntime_PlacementEveryServer(t *testing.T) {
	testutil.Bubble(t, func(t *testing.T) {
		s := newService(t)
		s.Write(targetType, "x", wrapperspb.String(""))
		var every, leader atomic.Int64
		counting := func(name string, n *atomic.Int64, p controller.Placement) controller.Controller {
			c := noop(name)
			c.Placement = p
			c.Reconcile = func(context.Context, *controller.Env, *pb.ID) (controller.Result, error) {
				n.Add(1)
				return controller.Result{}, nil
			}
			return c
		}
		election := controllertest.NewElection()
		for _, name := range []string{"a", "b", "c"} {
			cfg := quiet
			cfg.Elector = election.Candidate(name)
			s.Start(cfg, counting("every", &every, controller.EveryServer),
				counting("leader", &leader, controller.LeaderOnly))
		}
		synctest.Wait()
		if every.Load() != 3 || leader.Load() != 0 {
			t.Errorf("reconciles = %d, %d without a leader, want 3, 0", every.Load(), leader.Load())
		}
		election.Elect("b")
		synctest.Wait()
		if every.Load() != 3 || leader.Load() != 1 {
			t.Errorf("reconciles = %d, %d with a leader, want 3, 1", every.Load(), leader.Load())
		}
	})
}

func TestRuntime_PanicIsContainedAndBackedOff(t *testing.T) {
	testutil.Bubble(t, func(t *testing.T) {
		s := newService(t)
		s.Write(targetType, "bad", wrapperspb.String(""))
		s.Write(targetType, "good", wrapperspb.String(""))
		var panics, others atomic.Int64
		c := noop("c")
		c.Retry = controller.Retry{Min: time.Second, Max: time.Hour}
		c.Reconcile = func(_ context.Context, _ *controller.Env, id *pb.ID) (controller.Result, error) {
			if id.Name == "bad" {
				panics.Add(1)
				panic("out of order")
			}
			others.Add(1)
			return controller.Result{}, nil
		}
		rt, _ := s.Start(quiet, c)
		time.Sleep(10 * time.Second) // retries after 1, 2 and 4 s, plus jitter
		synctest.Wait()
		if panics.Load() != 4 || others.Load() != 1 {
			t.Errorf("reconciles = %d that panic, %d others, want 4, 1", panics.Load(), others.Load())
		}
		st := rt.Status()[0]
		if st.Errors != 4 || st.Reconciles != 5 || !strings.Contains(st.LastError, "out of order") || !st.Running {
			t.Errorf("Status() = %+v, want 4 errors of 5 reconciles, with the reason, running", st)
		}
	})
}

// TestRuntime_FailedFunctionsRestart checks that a controller starts again, and
// reconciles everything, after a fault of its other functions.
func TestRuntime_FailedFunctionsRestart(t *testing.T) {
	events := make(chan string, 1)
	var fail atomic.Bool
	fault := func(kind string) error {
		switch {
		case !fail.Swap(false):
			return nil
		case kind == "panic":
			panic("broken")
		}
		return errors.New("broken")
	}
	for _, kind := range []string{"panic", "error"} {
		for _, where := range []string{"mapper", "source", "initializer"} {
			t.Run(where+" "+kind, func(t *testing.T) {
				testutil.Bubble(t, func(t *testing.T) {
					events = make(chan string, 1)
					s := newService(t)
					s.Write(targetType, "x", wrapperspb.String(""))
					var reconciles, starts atomic.Int64
					c := noop("c")
					c.Initialize = func(context.Context, *controller.Env) error {
						starts.Add(1)
						if where == "initializer" {
							return fault(kind)
						}
						return nil
					}
					c.Reconcile = func(context.Context, *controller.Env, *pb.ID) (controller.Result, error) {
						reconciles.Add(1)
						return controller.Result{}, nil
					}
					c.Watches = []controller.Watch{{Type: routeType, Map: func(*controller.Env, *pb.Resource) ([]*pb.ID, error) {
						return nil, fault(kind)
					}}}
					c.Events = []controller.Source{controller.Events("words", events,
						func(_ context.Context, _ *controller.Env, name string) ([]*pb.ID, error) {
							return []*pb.ID{resource.ID(targetType, name)}, fault(kind)
						})}
					want := int64(1)
					if where == "initializer" {
						fail.Store(true)
					} else {
						want++
					}
					s.Start(quiet, c)
					synctest.Wait()
					switch where {
					case "mapper":
						fail.Store(true)
						s.Write(routeType, "r", wrapperspb.String(""))
					case "source":
						fail.Store(true)
						events <- "x"
					}
					time.Sleep(time.Second)
					synctest.Wait()
					if starts.Load() != 2 || reconciles.Load() != want || fail.Load() {
						t.Errorf("starts = %d, reconciles = %d, want 2, %d", starts.Load(), reconciles.Load(), want)
					}
				})
			})
		}
	}
}

func TestRuntime_EventsAndResync(t *testing.T) {
	testutil.Bubble(t, func(t *testing.T) {
		s := newService(t)
		s.Write(targetType, "x", wrapperspb.String(""))
		s.Write(targetType, "y", wrapperspb.String(""))
		connected := make(chan int)
		var got []string
		c := noop("c")
		c.Resync = time.Hour
		c.Events = []controller.Source{controller.Events("connected", connected,
			func(_ context.Context, _ *controller.Env, n int) ([]*pb.ID, error) {
				return []*pb.ID{resource.ID(targetType, fmt.Sprintf("event%d", n))}, nil
			})}
		c.Reconcile = func(_ context.Context, _ *controller.Env, id *pb.ID) (controller.Result, error) {
			got = append(got, id.Name)
			return controller.Result{}, nil
		}
		_, stop := s.Start(quiet, c)
		synctest.Wait() // the start has reconciled x and y
		connected <- 7
		time.Sleep(80 * time.Minute) // one resync, at most 75 minutes later
		stop()
		if want := "x y event7 x y"; strings.Join(got, " ") != want {
			t.Errorf("reconciles = %v, want %s", got, want)
		}
	})
}

// TestEvery_FollowsTheController has events while the process is elected. After
// an hour without leadership, the first event comes an interval after the start.
func TestEvery_FollowsTheController(t *testing.T) {
	testutil.Bubble(t, func(t *testing.T) {
		s := newService(t)
		var begin time.Time
		var got []string
		c := noop("c")
		c.Events = []controller.Source{controller.Every("tick", time.Minute,
			func(context.Context, *controller.Env, time.Time) ([]*pb.ID, error) {
				got = append(got, time.Since(begin).String())
				return nil, nil
			})}
		election := controllertest.NewElection()
		cfg := quiet
		cfg.Elector = election.Candidate("a")
		s.Start(cfg, c)
		for range 2 {
			time.Sleep(time.Hour)
			begin = time.Now()
			election.Elect("a")
			time.Sleep(2*time.Minute + time.Second)
			election.Elect("")
			synctest.Wait()
		}
		if want := "1m0s 2m0s 1m0s 2m0s"; strings.Join(got, " ") != want {
			t.Errorf("times of events after an election = %v, want %s", got, want)
		}
		for _, bad := range []controller.Source{
			controller.Every("tick", 0, func(context.Context, *controller.Env, time.Time) ([]*pb.ID, error) { return nil, nil }),
			controller.Every("tick", time.Minute, nil),
		} {
			c.Events = []controller.Source{bad}
			if _, err := controller.New(controller.Config{Client: s.Client}, c); err == nil || !strings.Contains(err.Error(), "Events[0]") {
				t.Errorf("New() with an invalid Every = %v, want an error with Events[0]", err)
			}
		}
	})
}

// TestRuntime_StartWaitsForAllCaches holds one of two watches.
func TestRuntime_StartWaitsForAllCaches(t *testing.T) {
	testutil.Bubble(t, func(t *testing.T) {
		s := newService(t)
		s.Write(targetType, "x", wrapperspb.String(""))
		s.Write(routeType, "r", wrapperspb.String("x"))
		w := &watches{ResourceServiceClient: s.Client}
		release := w.hold(routeType)
		cfg := quiet
		cfg.Client = w
		s.Start(cfg, aggregate())
		time.Sleep(time.Minute)
		if got := state(s, computedType); got != "" {
			t.Errorf("computed before all caches are in sync = %q, want none", got)
		}
		release()
		synctest.Wait()
		if got, want := state(s, computedType), "x:r=x"; got != want {
			t.Errorf("computed = %q, want %q", got, want)
		}
	})
}
