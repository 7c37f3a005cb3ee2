// SPDX-License-Identifier: MPL-2.0

package automation

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"runtime"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"
	"golang.org/x/sync/semaphore"

	"github.com/wanfed/wanfed/api/pb"
	"github.com/wanfed/wanfed/automation/driver"
	"github.com/wanfed/wanfed/automation/state"
	"github.com/wanfed/wanfed/automation/task"
	"github.com/wanfed/wanfed/automation/view"
	"github.com/wanfed/wanfed/controller"
	"github.com/wanfed/wanfed/lease"
	"github.com/wanfed/wanfed/resource"
)

// storeTimeout bounds the time in which a daemon that stops stores the result of
// a run that has ended, and releases its leases.
const storeTimeout = 3 * time.Second

// DefaultLease is the duration of the leases of a daemon without its own.
const DefaultLease = 15 * time.Second

// Config configures a Daemon.
type Config struct {
	// ID names the daemon, uniquely in its datacenter. It has the rules of
	// resource.CheckName. Required.
	ID string
	// Group selects the tasks. Default: task.DefaultGroup.
	Group string
	// Dir is the working directory. The daemon creates it. Required.
	Dir string
	// MaxRunning bounds the concurrent runs. Default: the number of processors.
	MaxRunning int
	// Buffer applies to tasks without a buffer. Nil: no delay.
	Buffer *pb.TaskBuffer
	// Lease is the duration of the leases: after a daemon has died, another one
	// takes over its tasks at most this long later. Default: DefaultLease.
	Lease time.Duration
	// StopTimeout is the time that runs have when the daemon stops, before they
	// are interrupted. Zero: they are interrupted at once.
	StopTimeout time.Duration

	// Resources and Leases call the servers. Required.
	Resources pb.ResourceServiceClient
	Leases    lease.Client
	// Views has the data of conditions and inputs. The Daemon runs it. Required.
	Views *view.Views
	// States has the states of tasks. Required.
	States *state.Store
	// Backend opens the backend of Terraform's state for a run. The run calls
	// closeBackend when its processes have ended, and gets the error of the first
	// request of Terraform that failed. Required for tasks of the driver
	// terraform.
	Backend func(ctx context.Context, c state.Claim, run string) (b driver.Backend, closeBackend func() error, err error)
	// Replay stores the states that an earlier process of the daemon could not
	// store. It is called before the daemon claims tasks. Nil: there are none.
	Replay func(ctx context.Context) error
	// Keep writes a state that a later run has superseded to a file, and returns the
	// path. Kept returns the paths of such files of a task. Both are required with
	// Backend.
	Keep func(c state.Claim, run string, data []byte) (path string, err error)
	Kept func(task string) []string
	// Permit lets the programs of a run in a directory run until a time, also if
	// this process has ended: see process.Guard. Zero time: the run has ended.
	// Nil: there are no programs.
	Permit func(dir string, until time.Time) error
	// Drivers has the drivers by the name that tasks have. Required.
	Drivers map[string]driver.Driver
	// Providers returns the providers that a task lists, with the present
	// values of their templates. It is called often. Nil: the daemon has none.
	Providers func(ctx context.Context, t *pb.Task) ([]driver.Provider, error)
	// Required has the source and version of providers, by name.
	Required map[string]driver.RequiredProvider
	// Key is a secret that the daemons of a group share, for digests of secrets.
	Key []byte
	// Address is the URL of the HTTP API, for other daemons. May be empty.
	Address string
	// Version is the version of the program.
	Version string
	// Once ends Run when each task of Expect has run or has nothing to do. Runs
	// are not delayed by buffers and not repeated.
	Once bool
	// Logger defaults to slog.Default().
	Logger *slog.Logger
}

// Daemon runs tasks. It is also a prometheus.Collector of its metrics.
type Daemon struct {
	cfg     Config
	claims  *claims
	slots   *semaphore.Weighted
	runtime *controller.Runtime
	metrics metrics
	started time.Time
	// versions has the versions of the programs of the drivers.
	versions    map[string]string
	changed     chan struct{} // of size 1: names has names
	unpublished chan struct{} // of size 1: the resource of the daemon is to be written

	mu    sync.Mutex
	names map[string]bool  // tasks to reconcile
	works map[string]*work // by name of the task
	// checks has the result of Driver.Check of each task of the group.
	checks map[string]check

	// clock is time.Now, except in tests of clock jumps.
	clock func() time.Time

	runs   sync.WaitGroup  // runs and watchers of views
	runCtx context.Context // of runs; ends StopTimeout after Run's
	// storeCtx is the context for their results. It ends storeTimeout after runCtx:
	// the next start finds a result that no server has stored.
	storeCtx context.Context
	stopping chan struct{} // closed when Run's context has ended
	once     onceResults
}

// New validates the configuration. It starts nothing.
func New(cfg Config) (*Daemon, error) {
	cfg.Group = cmp.Or(cfg.Group, task.DefaultGroup)
	cfg.MaxRunning = cmp.Or(cfg.MaxRunning, runtime.NumCPU())
	cfg.Lease = cmp.Or(cfg.Lease, DefaultLease)
	cfg.Logger = cmp.Or(cfg.Logger, slog.Default())
	switch {
	case cfg.Resources == nil || cfg.Leases == nil || cfg.Views == nil || cfg.States == nil || len(cfg.Drivers) == 0:
		return nil, errors.New("automation: Resources, Leases, Views, States and Drivers of Config are required")
	case cfg.Dir == "":
		return nil, errors.New("automation: Dir of Config is required")
	case cfg.MaxRunning < 0:
		return nil, fmt.Errorf("automation: MaxRunning %d: must not be negative", cfg.MaxRunning)
	case cfg.Lease < lease.MinDuration || cfg.Lease > task.MaxLease:
		return nil, fmt.Errorf("automation: Lease %v: must be %v to %v", cfg.Lease, lease.MinDuration, task.MaxLease)
	}
	if err := resource.CheckName(cfg.ID); err != nil {
		return nil, fmt.Errorf("automation: id of the daemon: %w", err)
	}
	d := &Daemon{
		cfg:     cfg,
		slots:   semaphore.NewWeighted(int64(cfg.MaxRunning)),
		changed: make(chan struct{}, 1), unpublished: make(chan struct{}, 1),
		names:    make(map[string]bool),
		works:    make(map[string]*work),
		checks:   make(map[string]check),
		stopping: make(chan struct{}),
		clock:    time.Now,
		once:     onceResults{done: make(chan struct{}), results: make(map[string]error)},
	}
	var err error
	d.runtime, err = controller.New(controller.Config{Client: cfg.Resources, Logger: cfg.Logger}, d.controller())
	return d, err
}

// Run runs tasks until ctx ends. It returns nil then, after all runs have ended
// and all goroutines are joined. With Config.Once it returns earlier, with the
// errors of the tasks. Run may be called once.
func (d *Daemon) Run(ctx context.Context) error {
	identity, unlock, err := openDir(d.cfg.Dir)
	if err != nil {
		return err
	}
	defer unlock()
	d.claims = &claims{
		client: d.cfg.Leases, holder: d.cfg.ID + "/" + identity, duration: d.cfg.Lease, logger: d.cfg.Logger,
		lost: d.leaseLost, held: make(map[string]claim),
	}
	if d.cfg.Replay != nil {
		if err := d.cfg.Replay(ctx); err != nil {
			d.cfg.Logger.Error("cannot store a state of an earlier run", "err", err)
		}
	}
	d.started, d.versions = time.Now(), make(map[string]string)
	for name, drv := range d.cfg.Drivers {
		if v, err := drv.Version(ctx); err == nil {
			d.versions[name] = v
		}
	}
	if err := d.register(ctx); err != nil && ctx.Err() == nil {
		return err
	}
	// Claims outlive the reconciler, because a run may still store its result.
	background, stopBackground := context.WithCancel(context.WithoutCancel(ctx))
	defer stopBackground()
	var interrupt, stopStoring context.CancelFunc
	d.runCtx, interrupt = context.WithCancel(background)
	defer interrupt()
	d.storeCtx, stopStoring = context.WithCancel(background)
	defer stopStoring()
	context.AfterFunc(d.runCtx, func() { time.AfterFunc(storeTimeout, stopStoring) })

	var work sync.WaitGroup
	defer work.Wait()
	defer stopBackground()
	work.Go(func() { d.claims.run(background) })

	ctx, stop := context.WithCancel(ctx)
	defer stop()
	g, gctx := errgroup.WithContext(ctx)
	g.Go(func() error {
		select {
		case <-d.once.done:
			stop()
		case <-gctx.Done():
		}
		return nil
	})
	g.Go(func() error { return d.cfg.Views.Run(gctx) })
	g.Go(func() error { return d.runtime.Run(gctx) })
	g.Go(func() error { d.maintain(gctx); return nil })
	err = g.Wait()
	close(d.stopping)
	timer := time.AfterFunc(d.cfg.StopTimeout, interrupt)
	defer timer.Stop()
	d.runs.Wait()
	last, cancel := context.WithTimeout(background, storeTimeout)
	defer cancel()
	d.deregister(last)
	d.claims.releaseAll(last)
	if err == nil && d.cfg.Once {
		err = d.once.err()
	}
	return err
}

// notify reconciles a task. It does not block.
func (d *Daemon) notify(name string) {
	d.mu.Lock()
	d.names[name] = true
	d.mu.Unlock()
	select {
	case d.changed <- struct{}{}:
	default:
	}
}

// takeNames returns the tasks of notify.
func (d *Daemon) takeNames() (ids []*pb.ID) {
	d.mu.Lock()
	defer d.mu.Unlock()
	for name := range d.names {
		ids = append(ids, task.ID(name))
	}
	clear(d.names)
	return ids
}

// leaseLost is called when another daemon may have a lease of this daemon. The
// others take a daemon without its own lease for dead.
func (d *Daemon) leaseLost(name string) {
	if name == task.InstanceLeaseName(d.cfg.ID) {
		d.cfg.Logger.Warn("lease of the daemon lost")
		d.publishLater()
		return
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	for taskName := range d.works {
		if task.LeaseName(taskName) == name {
			d.cfg.Logger.Warn("claim lost", "task", taskName)
			d.names[taskName] = true
		}
	}
	select {
	case d.changed <- struct{}{}:
	default:
	}
}
