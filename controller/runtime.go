// SPDX-License-Identifier: MPL-2.0

package controller

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"runtime/debug"
	"sync"
	"time"

	"github.com/tidwall/btree"
	"golang.org/x/sync/errgroup"
	"google.golang.org/grpc"

	"github.com/wanfed/wanfed/api/pb"
	"github.com/wanfed/wanfed/internal/backoff"
	"github.com/wanfed/wanfed/resource"
)

// Elector elects the process that runs the controllers with the placement
// LeaderOnly. raftstore.Store is the Elector of a server, and lease.Elector that
// of another process.
type Elector interface {
	// RunWhileLeader calls fn each time this process is elected. The context of
	// fn ends before another process can be elected, or soon after if writes of
	// this process fail from then on. Two calls of fn never overlap.
	// RunWhileLeader returns nil when ctx ends, and an error if this process
	// cannot be elected any more. It returns after fn has returned.
	RunWhileLeader(ctx context.Context, fn func(ctx context.Context) error) error
}

// Config configures a Runtime.
type Config struct {
	// Client reads, watches and writes resources. Required. A client of another
	// process uses a gRPC connection that dials again: see api.NewGRPCClient.
	Client pb.ResourceServiceClient
	// Elector elects the process that runs LeaderOnly controllers. Nil: this
	// process runs them always. Then no other process may run them.
	Elector Elector
	// Logger defaults to slog.Default().
	Logger *slog.Logger
}

// Runtime runs controllers. It is also a prometheus.Collector of their metrics.
type Runtime struct {
	cfg         Config
	cache       *Cache
	controllers []*runner // in the order of New
}

// New validates controllers. It starts nothing. The error names every fault.
func New(cfg Config, controllers ...Controller) (*Runtime, error) {
	var faults []error
	if cfg.Client == nil {
		faults = append(faults, errors.New("Config.Client is required"))
	}
	cfg.Logger = cmp.Or(cfg.Logger, slog.Default())
	rt := &Runtime{cfg: cfg, cache: &Cache{types: make(map[typeKey]*typeCache)}}
	names := make(map[string]bool)
	for i := range controllers {
		c := controllers[i].withDefaults()
		if err := c.validate(); err != nil {
			faults = append(faults, err)
			continue
		}
		if names[c.Name] {
			faults = append(faults, fmt.Errorf("controller %q: Name: is used twice", c.Name))
		}
		names[c.Name] = true
		for _, t := range c.types() {
			if rt.cache.types[typeKeyOf(t)] == nil {
				rt.cache.types[typeKeyOf(t)] = newTypeCache(t, cfg.Client, cfg.Logger)
			}
		}
		for _, x := range c.Indexes {
			rt.cache.types[typeKeyOf(x.Type)].addIndex(x)
		}
		log := cfg.Logger.With("controller", c.Name)
		env := &Env{Client: cfg.Client, Cache: rt.cache, Logger: log, controller: c}
		rt.controllers = append(rt.controllers, &runner{Controller: c, env: env, metrics: newMetrics(c.Name)})
	}
	if len(faults) > 0 {
		return nil, errors.Join(faults...)
	}
	return rt, nil
}

// Load reads the managed and the watched types of c once, and returns an Env
// with a cache of this state. Tests and commands use it to call the functions
// of a controller without a Runtime.
func Load(ctx context.Context, client pb.ResourceServiceClient, c Controller) (*Env, error) {
	rt, err := New(Config{Client: client, Logger: slog.New(slog.DiscardHandler)}, c)
	if err != nil {
		return nil, err
	}
	for _, tc := range rt.cache.types {
		if err := tc.follow(ctx, func() bool { return false }); err != nil {
			return nil, fmt.Errorf("load %s: %w", resource.TypeString(tc.typ), resource.FromStatus(err))
		}
	}
	return rt.controllers[0].env, nil
}

// Run runs the controllers until ctx ends, and returns nil. It returns the
// error of the Elector if the Elector fails. Run may be called once. It waits
// for all functions of the controllers.
func (rt *Runtime) Run(ctx context.Context) error {
	g, ctx := errgroup.WithContext(ctx)
	for _, tc := range rt.cache.types {
		g.Go(func() error { tc.run(ctx); return nil })
	}
	g.Go(func() error {
		if !rt.awaitSync(ctx) {
			return nil
		}
		g.Go(func() error { rt.runAll(ctx, EveryServer); return nil })
		leaders := func(ctx context.Context) error { rt.runAll(ctx, LeaderOnly); return nil }
		if rt.cfg.Elector == nil || !rt.has(LeaderOnly) {
			return leaders(ctx)
		}
		return rt.cfg.Elector.RunWhileLeader(ctx, leaders)
	})
	return g.Wait()
}

func (rt *Runtime) has(p Placement) bool {
	for _, r := range rt.controllers {
		if r.Placement == p {
			return true
		}
	}
	return false
}

// syncLogInterval is the interval of logs about a type that is not in sync.
const syncLogInterval = 10 * time.Second

// awaitSync waits until all caches are in sync. It returns false if ctx ended
// before.
func (rt *Runtime) awaitSync(ctx context.Context) bool {
	for _, tc := range rt.cache.types {
		for waiting := true; waiting; {
			select {
			case <-tc.synced:
				waiting = false
			case <-time.After(syncLogInterval):
				rt.cfg.Logger.Warn("controllers wait for the first snapshot", "type", resource.TypeString(tc.typ))
			case <-ctx.Done():
				return false
			}
		}
	}
	return true
}

// runAll runs the controllers of a placement until ctx ends, and joins them.
func (rt *Runtime) runAll(ctx context.Context, p Placement) {
	var wg sync.WaitGroup
	for _, r := range rt.controllers {
		if r.Placement == p {
			wg.Go(func() { r.supervise(ctx) })
		}
	}
	wg.Wait()
}

// runner runs one controller.
type runner struct {
	*Controller
	env     *Env
	metrics *metrics
	// election is the context of the Elector for the running instance, or that
	// of Run for another placement. Nil: no instance runs.
	election context.Context
}

// supervise runs one instance after the other until ctx ends.
func (r *runner) supervise(ctx context.Context) {
	for failures := 1; ctx.Err() == nil; failures++ {
		start := time.Now()
		err := r.run(ctx)
		if ctx.Err() != nil {
			return
		}
		if time.Since(start) > r.Retry.Max {
			failures = 1
		}
		pause := backoff.Delay(failures, max(r.Retry.Min, minRestart), r.Retry.Max)
		r.metrics.restarted(err)
		r.env.Logger.Error("controller stopped", "err", err, "duration", pause)
		backoff.Sleep(ctx, pause, nil)
	}
}

// elected returns the runner of one instance. ctx is the context of the Elector:
// after its end, no reconcile begins and the client does not write.
func (r *runner) elected(ctx context.Context) *runner {
	if r.Placement != LeaderOnly {
		return &runner{Controller: r.Controller, env: r.env, metrics: r.metrics, election: ctx}
	}
	env := *r.env
	env.Client = electedClient{env.Client, ctx}
	return &runner{Controller: r.Controller, env: &env, metrics: r.metrics, election: ctx}
}

// electedClient refuses writes after the end of the election. A context that is
// derived from that of an Elector may end a moment later, because a timer ends
// it: see lease.Held.
type electedClient struct {
	pb.ResourceServiceClient
	election context.Context
}

func (c electedClient) check() error {
	if err := c.election.Err(); err != nil {
		return resource.StatusError(fmt.Errorf("%w: this process is not elected any more", err))
	}
	return nil
}

func (c electedClient) Write(
	ctx context.Context, in *pb.WriteRequest, opts ...grpc.CallOption,
) (*pb.WriteResponse, error) {
	if err := c.check(); err != nil {
		return nil, err
	}
	return c.ResourceServiceClient.Write(ctx, in, opts...)
}

func (c electedClient) WriteStatus(
	ctx context.Context, in *pb.WriteStatusRequest, opts ...grpc.CallOption,
) (*pb.WriteStatusResponse, error) {
	if err := c.check(); err != nil {
		return nil, err
	}
	return c.ResourceServiceClient.WriteStatus(ctx, in, opts...)
}

func (c electedClient) Delete(
	ctx context.Context, in *pb.DeleteRequest, opts ...grpc.CallOption,
) (*pb.DeleteResponse, error) {
	if err := c.check(); err != nil {
		return nil, err
	}
	return c.ResourceServiceClient.Delete(ctx, in, opts...)
}

// minRestart is the shortest pause before a controller starts again, because
// each start reconciles every managed resource.
const minRestart = 100 * time.Millisecond

// run runs one instance until ctx ends or a function of the controller fails,
// and joins its goroutines.
func (r *runner) run(ctx context.Context) error {
	r = r.elected(ctx)
	if r.Initialize != nil {
		if err := r.contain(func() error { return r.Initialize(ctx, r.env) }); err != nil {
			return fmt.Errorf("initialize: %w", err)
		}
	}
	q := newQueue(r.Retry)
	defer q.close()
	r.metrics.started(q)
	defer r.metrics.stopped()
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	g, ctx := errgroup.WithContext(ctx)
	run := func(fn func() error) { g.Go(func() error { return r.contain(fn) }) }
	self := Watch{r.Managed, func(_ *Env, m *pb.Resource) ([]*pb.ID, error) { return []*pb.ID{m.GetId()}, nil }}
	for _, w := range append([]Watch{self}, r.Watches...) {
		tc := r.env.Cache.types[typeKeyOf(w.Type)] // New has added it
		s := &subscriber{changes: make(chan change), done: ctx.Done()}
		present := tc.subscribe(s)
		defer tc.unsubscribe(s)
		if err := r.contain(func() error { return r.addPresent(ctx, q, w.Map, present) }); err != nil {
			return errors.Join(err, stopAll(cancel, g))
		}
		run(func() error { return r.follow(ctx, q, w.Map, s) })
	}
	for _, s := range r.Events {
		run(func() error {
			return s.run(ctx, r.env, func(ids ...*pb.ID) error { return r.addAll(q, foreground, ids) })
		})
	}
	for range r.Workers { // after all present resources are added, so each is reconciled once
		run(func() error { r.work(ctx, q); return nil })
	}
	run(func() error { return r.resync(ctx, q) })
	<-ctx.Done()
	q.close()
	return g.Wait()
}

// stopAll cancels the context of g and joins it.
func stopAll(cancel context.CancelFunc, g *errgroup.Group) error {
	cancel()
	return g.Wait()
}

// contain calls fn. It converts a panic into an error.
func (r *runner) contain(fn func() error) (err error) {
	defer func() {
		if p := recover(); p != nil {
			r.metrics.panics.Inc()
			r.env.Logger.Error("controller panicked", "reason", fmt.Sprint(p), "stack", string(debug.Stack()))
			err = fmt.Errorf("panic: %v", p)
		}
	}()
	return fn()
}

// addPresent adds the ids of all present resources of a type.
func (r *runner) addPresent(ctx context.Context, q *queue, m Mapper, present *btree.BTreeG[*entry]) (err error) {
	present.Scan(func(e *entry) bool {
		var ids []*pb.ID
		if ids, err = r.mapAll(m, e.r); err == nil {
			err = r.addAll(q, background, ids)
		}
		return err == nil && ctx.Err() == nil
	})
	return err
}

// follow adds the ids of each change.
func (r *runner) follow(ctx context.Context, q *queue, m Mapper, s *subscriber) error {
	for {
		select {
		case c := <-s.changes:
			ids, err := r.mapAll(m, c.old, c.next)
			if err != nil {
				return err
			}
			bound, err := r.boundTo(cmp.Or(c.next, c.old).GetId())
			if err == nil {
				err = r.addAll(q, foreground, append(ids, bound...))
			}
			if err != nil {
				return err
			}
		case <-ctx.Done():
			return nil
		}
	}
}

// mapAll returns the ids to which m maps states of resources. It skips nil.
func (r *runner) mapAll(m Mapper, states ...*pb.Resource) ([]*pb.ID, error) {
	var ids []*pb.ID
	for _, state := range states {
		if state == nil {
			continue
		}
		more, err := m(r.env, state)
		if err != nil {
			return nil, fmt.Errorf("map %s: %w", resource.IDString(state.GetId()), err)
		}
		ids = append(ids, more...)
	}
	return ids, nil
}

// boundTo treats a change of a resource as a change of every managed or watched
// resource that has it as a bound reference, and returns the ids.
func (r *runner) boundTo(id *pb.ID) ([]*pb.ID, error) {
	ids, err := idsOf(r.env.Cache.BoundTo(r.Managed, id))
	for _, w := range r.Watches {
		if err != nil {
			return nil, err
		}
		var computed []*pb.Resource
		if computed, err = r.env.Cache.BoundTo(w.Type, id); err == nil && len(computed) > 0 {
			var more []*pb.ID
			more, err = r.mapAll(w.Map, computed...)
			ids = append(ids, more...)
		}
	}
	return ids, err
}

// addAll adds ids, which must be of the managed type.
func (r *runner) addAll(q *queue, c class, ids []*pb.ID) error {
	for _, id := range ids {
		if !resource.SameType(id.GetType(), r.Managed) {
			return fmt.Errorf("%s is not of the managed type %s", resource.IDString(id), resource.TypeString(r.Managed))
		}
	}
	q.add(c, ids...)
	return nil
}

// resync adds all managed resources in intervals.
func (r *runner) resync(ctx context.Context, q *queue) error {
	if r.Resync < 0 {
		return nil
	}
	for {
		backoff.Sleep(ctx, backoff.Jitter(r.Resync), nil)
		if ctx.Err() != nil {
			return nil
		}
		ids, err := MapAll(r.env, nil)
		if err == nil {
			err = r.addAll(q, background, ids)
		}
		if err != nil {
			return err
		}
	}
}

// work reconciles ids until the queue is closed.
func (r *runner) work(ctx context.Context, q *queue) {
	for {
		it, waited := q.get()
		if it == nil || r.election.Err() != nil {
			return
		}
		var res Result
		start := time.Now()
		err := r.contain(func() (err error) {
			res, err = r.Reconcile(ctx, r.env, it.id)
			return err
		})
		retry := q.done(it, res, err)
		if ctx.Err() != nil {
			err = nil // the controller stops
		}
		r.metrics.reconciled(waited, time.Since(start), err)
		if err != nil {
			r.env.Logger.Warn("reconcile failed", "resource", resource.IDString(it.id), "err", err, "duration", retry)
		}
	}
}
