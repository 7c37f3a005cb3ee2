// SPDX-License-Identifier: MPL-2.0

package controller

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"time"

	"github.com/wanfed/wanfed/api/pb"
	"github.com/wanfed/wanfed/resource"
)

// Controller declares one control loop. New copies it. Its functions may be
// called from several goroutines.
type Controller struct {
	// Name is unique in a runtime. It is the key of the status that the
	// controller writes, and a label of its metrics. Required.
	Name string
	// Managed is the type whose resources the controller reconciles. Required.
	Managed *pb.Type
	// Watches has further types, of which a change causes reconciles. A type
	// may appear several times.
	Watches []Watch
	// Events has the sources of events that are not resources.
	Events []Source
	// Indexes has the indexes that mappers and the reconciler query. The type
	// of each must be managed or watched.
	Indexes []*Index
	// Reconcile brings one managed resource into its desired state. The id has
	// no uid, and the resource may be deleted. Required.
	Reconcile func(ctx context.Context, env *Env, id *pb.ID) (Result, error)
	// Initialize is called before the first reconcile of each start, when the
	// caches are in sync. After an error, the controller starts again after a
	// backoff. Nil: nothing to do.
	Initialize func(ctx context.Context, env *Env) error
	// Placement defaults to LeaderOnly.
	Placement Placement
	// Resync is the time between reconciles of all managed resources, plus
	// jitter. Zero: 10 hours. Negative: never.
	Resync time.Duration
	// Workers is the number of concurrent reconciles. Zero: 1.
	Workers int
	// Retry is the policy after a failed reconcile or start.
	Retry Retry
}

// Watch is a watched type and the mapper from its resources to managed ones.
type Watch struct {
	Type *pb.Type
	Map  Mapper
}

// Placement defines which processes run a controller.
type Placement int

const (
	// LeaderOnly runs the controller in the process that Config.Elector elects.
	LeaderOnly Placement = iota
	// EveryServer runs the controller in every process with a runtime.
	EveryServer
)

func (p Placement) String() string {
	if p == EveryServer {
		return "every server"
	}
	return "leader"
}

// Retry is the backoff policy of a controller. It is the longer of two delays:
// that of the id, which doubles from Min to Max with each failure, and that of
// the rate limit of all retries of the controller.
type Retry struct {
	// Min is the delay after the first failure. Zero: 10 ms.
	Min time.Duration
	// Max is the longest delay, before up to a quarter of jitter. Zero: 5 min.
	Max time.Duration
	// PerSecond limits the retries of all ids. Zero: 10. Negative: no limit.
	PerSecond float64
	// Burst is the number of retries that PerSecond does not delay. Zero: 100.
	Burst int
}

// Result is the outcome of a reconcile without an error.
type Result struct {
	// RequeueAfter reconciles the id again after this time. Zero: not before
	// the next change. The result of a later reconcile replaces it.
	RequeueAfter time.Duration
	// RequeueNow puts the id at the end of the queue.
	RequeueNow bool
}

// Env is what the functions of a controller use. All methods may be called from
// any goroutine.
type Env struct {
	// Client reads and writes resources. Errors are gRPC statuses: see
	// resource.FromStatus.
	Client pb.ResourceServiceClient
	// Cache has the resources of the managed and the watched types.
	Cache *Cache
	// Logger has the name of the controller as an attribute.
	Logger *slog.Logger

	controller *Controller
}

// Managed returns the managed type.
func (e *Env) Managed() *pb.Type { return e.controller.Managed }

// Read returns the acknowledged state of a resource (resource.Strong), of any
// type. Its errors are those of resource.FromStatus.
func (e *Env) Read(ctx context.Context, id *pb.ID) (*pb.Resource, error) {
	resp, err := e.Client.Read(resource.WithConsistency(ctx, resource.Strong), &pb.ReadRequest{Id: id})
	return resp.GetResource(), resource.FromStatus(err)
}

// List returns the acknowledged resources of a type whose names begin with
// prefix, in the default tenancy if tenancy is nil. Its errors are those of
// resource.FromStatus.
func (e *Env) List(ctx context.Context, typ *pb.Type, tenancy *pb.Tenancy, prefix string) ([]*pb.Resource, error) {
	resp, err := e.Client.List(resource.WithConsistency(ctx, resource.Strong),
		&pb.ListRequest{Type: typ, Tenancy: tenancy, NamePrefix: prefix})
	return resp.GetResources(), resource.FromStatus(err)
}

// Source has events that are not resources: see Events and Every.
type Source struct {
	name string
	run  func(ctx context.Context, env *Env, add func(ids ...*pb.ID) error) error
}

// Events returns a Source. Each event of c is mapped to managed ids. The
// controller receives events only while it runs, and starts with a reconcile of
// every managed resource. A sender should therefore use a channel of size 1 and
// drop an event when the channel is full, or select on its own context. A
// closed channel has no further events. An error of mapEvent stops the
// controller, which starts again after a backoff.
func Events[T any](
	name string, c <-chan T, mapEvent func(ctx context.Context, env *Env, event T) ([]*pb.ID, error),
) Source {
	s := Source{name: name}
	if c == nil || mapEvent == nil {
		return s
	}
	s.run = func(ctx context.Context, env *Env, add func(ids ...*pb.ID) error) error {
		for {
			select {
			case event, ok := <-c:
				if !ok {
					return nil
				}
				ids, err := mapEvent(ctx, env, event)
				if err == nil {
					err = add(ids...)
				}
				if err != nil {
					return fmt.Errorf("map event of %s: %w", name, err)
				}
			case <-ctx.Done():
				return nil
			}
		}
	}
	return s
}

// Every returns a Source with an event in each interval. The first one is an
// interval after the start of the controller. The end of the controller stops
// the timer. mapEvent is that of Events.
func Every(
	name string, interval time.Duration, mapEvent func(ctx context.Context, env *Env, now time.Time) ([]*pb.ID, error),
) Source {
	s := Source{name: name}
	if interval <= 0 || mapEvent == nil {
		return s
	}
	s.run = func(ctx context.Context, env *Env, add func(ids ...*pb.ID) error) error {
		t := time.NewTicker(interval)
		defer t.Stop()
		return Events(name, t.C, mapEvent).run(ctx, env, add)
	}
	return s
}

// validate returns an error that names every fault of c, which has defaults.
func (c *Controller) validate() error {
	var faults []error
	fault := func(wrong bool, field, rule string) {
		if wrong {
			faults = append(faults, fmt.Errorf("%s: %s", field, rule))
		}
	}
	fault(c.Name == "", "Name", "is required")
	fault(c.Managed.GetKind() == "", "Managed", "is required")
	fault(c.Reconcile == nil, "Reconcile", "is required")
	fault(c.Placement != LeaderOnly && c.Placement != EveryServer, "Placement", "must be LeaderOnly or EveryServer")
	fault(c.Workers < 0, "Workers", "must not be negative")
	fault(c.Retry.Min < 0 || c.Retry.Max < 0 || c.Retry.Burst < 0, "Retry", "Min, Max and Burst must not be negative")
	fault(c.Retry.Min > c.Retry.Max, "Retry", "Min must not exceed Max")
	for i, w := range c.Watches {
		field := fmt.Sprintf("Watches[%d]", i)
		fault(w.Type.GetKind() == "", field+".Type", "is required")
		fault(w.Map == nil, field+".Map", "is required")
	}
	for i, s := range c.Events {
		fault(s.run == nil, fmt.Sprintf("Events[%d]", i), "needs a channel or an interval, and a function: use Events or Every")
	}
	for i, x := range c.Indexes {
		field := fmt.Sprintf("Indexes[%d]", i)
		if x == nil || x.Keys == nil || x.Name == "" {
			fault(true, field, "needs a Name and Keys")
			continue
		}
		fault(!slices.ContainsFunc(c.types(), func(t *pb.Type) bool { return resource.SameType(t, x.Type) }),
			field, resource.TypeString(x.Type)+" must be managed or watched")
	}
	if len(faults) > 0 {
		return fmt.Errorf("controller %q: %w", c.Name, errors.Join(faults...))
	}
	return nil
}

// types returns the managed and the watched types, possibly with duplicates.
func (c *Controller) types() []*pb.Type {
	all := []*pb.Type{c.Managed}
	for _, w := range c.Watches {
		all = append(all, w.Type)
	}
	return all
}

func (c *Controller) withDefaults() *Controller {
	d := *c
	d.Resync = cmp.Or(c.Resync, 10*time.Hour)
	d.Workers = cmp.Or(c.Workers, 1)
	d.Retry = c.Retry.withDefaults()
	return &d
}

func (r Retry) withDefaults() Retry {
	return Retry{
		Min: cmp.Or(r.Min, 10*time.Millisecond), Max: cmp.Or(r.Max, 5*time.Minute),
		PerSecond: cmp.Or(r.PerSecond, 10), Burst: cmp.Or(r.Burst, 100),
	}
}
