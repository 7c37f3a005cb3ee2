// SPDX-License-Identifier: MPL-2.0

package checks

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"net/netip"
	"sync"
	"time"

	"google.golang.org/protobuf/proto"

	"github.com/wanfed/wanfed/api/pb"
	"github.com/wanfed/wanfed/catalog"
	"github.com/wanfed/wanfed/internal/backoff"
	"github.com/wanfed/wanfed/internal/ratelog"
	"github.com/wanfed/wanfed/resource"
)

const (
	// MaxChecks is the number of checks that a server runs.
	MaxChecks = 4096
	// MaxRequests is the number of requests that a server makes at a time.
	MaxRequests = 256
	// reportTimeout bounds one report to the leader.
	reportTimeout = 10 * time.Second
)

// Config configures a Runner. All fields are required.
type Config struct {
	// Node and Address are the name and the address of this server.
	Node    string
	Address netip.Addr
	// Backend has the checks.
	Backend resource.Backend
	// Report reports a result to the leader.
	Report func(ctx context.Context, u catalog.CheckUpdate) error
	Logger *slog.Logger
}

// Runner runs the checks of the node of this server.
type Runner struct {
	cfg      Config
	probe    func(ctx context.Context, p *pb.Probe) result
	max      int           // number of checks
	requests chan struct{} // semaphore
	failed   *ratelog.Logger[string]

	running map[string]*check // by name of the resource; only follow uses it
	wg      sync.WaitGroup    // of the goroutines of running
}

// New returns a Runner.
func New(cfg Config) (*Runner, error) {
	if cfg.Node == "" || !cfg.Address.IsValid() || cfg.Backend == nil || cfg.Report == nil || cfg.Logger == nil {
		return nil, errors.New("checks: all fields of the Config are required")
	}
	return &Runner{
		cfg: cfg, probe: prober{cfg.Address}.probe, max: MaxChecks, requests: make(chan struct{}, MaxRequests),
		failed: ratelog.New[string](cfg.Logger), running: map[string]*check{},
	}, nil
}

// Run runs the checks until ctx ends. It may be called once.
func (r *Runner) Run(ctx context.Context) error {
	ctx, cancel := context.WithCancel(ctx)
	defer r.wg.Wait()
	defer cancel()
	if err := r.follow(ctx); ctx.Err() == nil {
		return fmt.Errorf("watch checks: %w", err)
	}
	return nil
}

// follow starts and stops checks by the events of a watch.
func (r *Runner) follow(ctx context.Context) error {
	for {
		w, err := r.cfg.Backend.Watch(resource.Query{Type: catalog.CheckType})
		if err != nil {
			return err
		}
		listed := map[string]bool{} // checks of the snapshot; nil after it
		for err == nil {
			var ev *pb.WatchEvent
			if ev, err = w.Next(ctx); err != nil {
				break
			}
			switch {
			case ev.GetUpsert() != nil:
				if listed != nil {
					listed[ev.GetUpsert().GetResource().GetId().GetName()] = true
				}
				r.update(ctx, ev.GetUpsert().GetResource())
			case ev.GetDelete() != nil:
				r.stop(ev.GetDelete().GetResource().GetId().GetName())
			case ev.GetEndOfSnapshot() != nil:
				for name := range r.running {
					if listed != nil && !listed[name] { // deleted before the watch was reset
						r.stop(name)
					}
				}
				listed = nil
			}
		}
		w.Close()
		if !errors.Is(err, resource.ErrWatchReset) {
			return err
		}
	}
}

// update starts, changes or stops the check in a resource.
func (r *Runner) update(ctx context.Context, res *pb.Resource) {
	name := res.GetId().GetName()
	c, err := resource.Decode[*pb.Check](res)
	if err != nil {
		r.cfg.Logger.Error("cannot read a check", "check", name, "err", err)
		return
	}
	// A caller who may write a resource with another name must not choose the node.
	if c.Probe == nil || c.Node != r.cfg.Node || name != catalog.CheckName(c.Node, c.CheckId) {
		r.stop(name)
		return
	}
	if k := r.running[name]; k != nil {
		if proto.Equal(k.probe, c.Probe) {
			k.setStored(result{c.Status, c.Output})
			return
		}
		r.stop(name)
	}
	cctx, cancel := context.WithCancel(ctx)
	k := &check{
		runner: r, name: name, id: c.CheckId, probe: c.Probe, cancel: cancel, stored: result{c.Status, c.Output},
		excess: len(r.running) >= r.max,
	}
	r.running[name] = k
	r.wg.Go(func() { k.run(cctx) })
}

// stop stops a check, if it runs. It does not wait for its goroutine.
func (r *Runner) stop(name string) {
	if k := r.running[name]; k != nil {
		k.cancel()
		delete(r.running, name)
	}
}

// check is one check that runs.
type check struct {
	runner   *Runner
	name, id string
	probe    *pb.Probe
	cancel   context.CancelFunc
	excess   bool // the server has too many checks

	mu     sync.Mutex
	stored result // what the catalog has
}

func (k *check) setStored(r result) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.stored = r
}

func (k *check) isStored(r result) bool {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.stored == r
}

// run performs the probe once per interval until ctx ends. The first time is
// random.
func (k *check) run(ctx context.Context) {
	if k.excess {
		k.report(ctx, critical("not run: server %s has %d other checks, which is its limit", k.runner.cfg.Node, k.runner.max))
		return
	}
	interval := max(k.probe.GetInterval().AsDuration(), catalog.MinProbeInterval)
	next := time.Now().Add(rand.N(interval))
	state := thresholds{probe: k.probe}
	for {
		backoff.Sleep(ctx, time.Until(next), nil)
		select {
		case k.runner.requests <- struct{}{}:
		case <-ctx.Done():
		}
		if ctx.Err() != nil {
			return
		}
		got := k.attempt(ctx)
		<-k.runner.requests
		next = next.Add(interval)
		if now := time.Now(); next.Before(now) { // the request or the wait for a slot was long
			next = now.Add(interval)
		}
		if got, ok := state.add(got); ok && ctx.Err() == nil {
			rctx, cancel := context.WithDeadline(ctx, next)
			k.report(rctx, got)
			cancel()
		}
	}
}

func (k *check) attempt(ctx context.Context) result {
	ctx, cancel := context.WithTimeout(ctx, cmp.Or(k.probe.GetTimeout().AsDuration(), catalog.DefaultProbeTimeout))
	defer cancel()
	return k.runner.probe(ctx, k.probe)
}

// report reports a result that the catalog does not have. It repeats the report
// until it succeeds or ctx ends.
func (k *check) report(ctx context.Context, got result) {
	pause := backoff.Backoff{Min: 100 * time.Millisecond, Max: 5 * time.Second}
	for ctx.Err() == nil && !k.isStored(got) {
		k.setStored(got) // before the report, so that a later write of another client counts
		rctx, cancel := context.WithTimeout(ctx, reportTimeout)
		err := k.runner.cfg.Report(rctx, catalog.CheckUpdate{
			Node: k.runner.cfg.Node, CheckID: k.id, Status: got.status, Output: got.output, Probed: true,
		})
		cancel()
		switch {
		case err == nil, errors.Is(err, resource.ErrNotFound): // not found: the watch will report the deletion
			return
		case ctx.Err() == nil:
			k.runner.failed.Log("report", slog.LevelWarn, "cannot report the result of a check", "check", k.name, "err", err)
		}
		k.setStored(result{}) // unknown
		backoff.Sleep(ctx, pause.Next(), nil)
	}
}
