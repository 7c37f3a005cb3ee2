// SPDX-License-Identifier: MPL-2.0

package syncd

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"os"
	"os/signal"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/wanfed/wanfed/api"
	"github.com/wanfed/wanfed/api/pb"
	"github.com/wanfed/wanfed/automation"
	"github.com/wanfed/wanfed/automation/config"
	"github.com/wanfed/wanfed/automation/driver"
	"github.com/wanfed/wanfed/automation/exec"
	programs "github.com/wanfed/wanfed/automation/process"
	"github.com/wanfed/wanfed/automation/state"
	"github.com/wanfed/wanfed/automation/task"
	"github.com/wanfed/wanfed/automation/terraform"
	"github.com/wanfed/wanfed/automation/view"
	"github.com/wanfed/wanfed/internal/output"
	"github.com/wanfed/wanfed/internal/sdnotify"
	"github.com/wanfed/wanfed/internal/settings"
	"github.com/wanfed/wanfed/internal/version"
	"github.com/wanfed/wanfed/lease"
)

// Mode is what Run does with the tasks.
type Mode int

// The modes.
const (
	Daemon  Mode = iota // run tasks until the context ends
	Once                // run each task once
	Inspect             // plan each task of the files, and change nothing
)

// Config configures Run.
type Config struct {
	// Paths are the configuration files and directories, in order.
	Paths []string
	Mode  Mode
	// LogFormat is "text" or "json".
	LogFormat string
	// Stdout receives one line when the daemon runs. Stderr receives the log.
	Stdout, Stderr io.Writer
}

// keyFile is the file with the keys of states in the working directory, for a
// daemon without state_key_file.
const keyFile = ".state-keys"

// pendingDir is the directory in the working directory with states that are not
// stored yet.
const pendingDir = ".pending"

// stopTimeout is the time that runs have when the daemon stops.
const stopTimeout = 10 * time.Second

// Run runs a daemon until ctx ends. It returns earlier in the modes Once and
// Inspect, with the errors of all tasks.
func Run(ctx context.Context, cfg Config) (err error) {
	sighup := make(chan os.Signal, 1)
	signal.Notify(sighup, syscall.SIGHUP)
	defer signal.Stop(sighup)
	files, err := config.Load(cfg.Paths, os.Getenv)
	if err != nil {
		return err
	}
	if err := files.CheckModules(); err != nil {
		return err
	}
	level := new(slog.LevelVar)
	level.Set(files.LogLevel)
	logger, err := settings.NewLogger(cfg.Stderr, level, cfg.LogFormat)
	if err != nil {
		return err
	}
	for _, w := range files.Warnings {
		logger.Warn("configuration", "reason", w)
	}
	id, err := loadIdentity(files.Wanfed, logger)
	if err != nil {
		return err
	}
	if files.WorkingDir, err = filepath.Abs(files.WorkingDir); err != nil {
		return err
	}
	if err := os.MkdirAll(files.WorkingDir, 0o700); err != nil {
		return fmt.Errorf("working_dir: %w", err)
	}
	keyPath, keys, err := keysOf(files)
	if err != nil {
		return err
	}
	to, err := connect(ctx, files, id, logger)
	if err != nil && ctx.Err() != nil && cfg.Mode == Daemon {
		return nil // a stop is not a failure
	}
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, to.close()) }()
	p := &process{cfg: cfg, files: files, to: to, keyPath: keyPath, keys: keys, log: logger, level: level, sighup: sighup}
	p.providersOf.Store(files)
	return p.run(ctx, id.Run)
}

// process is a running daemon.
type process struct {
	cfg   Config
	files *config.Config
	to    *servers
	// keyPath is the path of the file of keys.
	keyPath string
	keys    *state.Keys
	log     *slog.Logger
	level   *slog.LevelVar
	// providersOf are the files with the providers in force.
	providersOf atomic.Pointer[config.Config]
	sighup      chan os.Signal // of size 1: a pending signal is not lost
}

// keysOf returns the path of the file with the keys of states, and its keys.
// Daemons of one group need the same keys, so only a daemon of the default group
// creates a file.
func keysOf(files *config.Config) (path string, keys *state.Keys, err error) {
	path = files.StateKeyFile
	if path == "" && files.Group != "" && files.Group != task.DefaultGroup {
		return "", nil, fmt.Errorf("state_key_file is required with the group %q, because all daemons of a group need the "+
			"same keys: create the file with: wanfed task state key FILE", files.Group)
	}
	if path == "" {
		path = filepath.Join(files.WorkingDir, keyFile)
		if _, err := os.Stat(path); errors.Is(err, os.ErrNotExist) {
			if _, err := state.GenerateKey(path); err != nil {
				return "", nil, err
			}
		}
	}
	keys, err = state.ReadKeys(path)
	return path, keys, err
}

// run runs the daemon. watchIdentity reloads the certificate.
func (p *process) run(ctx context.Context, watchIdentity func(context.Context) error) error {
	resources := pb.NewResourceServiceClient(p.to.conn)
	states, err := state.NewStore(state.StoreConfig{Client: resources, KeyFile: p.keyPath})
	if err != nil {
		return err
	}
	loopback, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return fmt.Errorf("listen for Terraform's states: %w", err)
	}
	defer loopback.Close()
	backend, err := state.NewBackend(state.BackendConfig{
		Store: states, Listener: loopback, Dir: filepath.Join(p.files.WorkingDir, pendingDir), Logger: p.log,
	})
	if err != nil {
		return err
	}
	views, err := p.views()
	if err != nil {
		return err
	}
	var guard programs.Guard
	defer guard.Close()
	d, err := automation.New(automation.Config{
		ID: p.files.ID, Group: p.files.Group, Dir: p.files.WorkingDir, MaxRunning: p.files.MaxRunning,
		Buffer: p.files.Buffer, Lease: p.files.Lease, StopTimeout: stopTimeout,
		Resources: resources, Leases: lease.NewClient(p.to.conn),
		Views: views, States: states, Backend: p.openBackend(backend), Replay: backend.Replay, Permit: guard.Permit,
		Keep: backend.Keep, Kept: backend.Kept,
		Drivers: map[string]driver.Driver{
			task.DriverTerraform: terraform.New(terraform.Config{Path: p.files.Terraform.Path}),
			task.DriverExec:      exec.Driver{},
		},
		Providers: p.providers, Required: p.files.Terraform.Required, Key: p.keys.DigestKey(), Address: p.files.Address,
		Version: version.Version, Once: p.cfg.Mode == Once, Logger: p.log,
	})
	if err != nil {
		return err
	}
	// The backend stores the states of runs that end after the daemon was stopped.
	background, stopBackground := context.WithCancel(context.WithoutCancel(ctx))
	var serving sync.WaitGroup
	defer serving.Wait()
	defer stopBackground()
	serving.Go(func() {
		if err := backend.Run(background); err != nil {
			p.log.Error("cannot serve Terraform's states", "err", err)
		}
	})
	serving.Go(func() {
		if err := watchIdentity(background); err != nil {
			p.log.Error("cannot reload the certificate", "err", err)
		}
	})
	serving.Go(func() { followRevocations(background, resources, p.to.id, p.log) })
	if p.cfg.Mode == Inspect {
		return p.inspect(ctx, d, views)
	}
	return p.serve(ctx, d, resources)
}

// views returns the views of the source of data.
func (p *process) views() (*view.Views, error) {
	cfg := view.Config{Datacenter: p.to.dc, Logger: p.log}
	if p.files.Wanfed.FromConsul {
		return view.NewConsul(p.to.http, cfg)
	}
	return view.New(view.NewSource(p.to.http), cfg)
}

// serve runs the daemon and its HTTP API until ctx ends.
func (p *process) serve(ctx context.Context, d *automation.Daemon, resources pb.ResourceServiceClient) error {
	ctx, stop := context.WithCancel(ctx)
	defer stop()
	g, gctx := errgroup.WithContext(ctx)
	if p.cfg.Mode == Daemon {
		ln, err := p.listen()
		if err != nil {
			return err
		}
		g.Go(func() error { return p.serveAPI(gctx, ln, &tasks{process: p, daemon: d, resources: resources}) })
		if r := p.newRegistrar(resources, ln.Addr()); r != nil {
			g.Go(func() error { p.keepRegistered(gctx, r); return nil })
		}
		settings.PrintReady(p.cfg.Stdout, p.cfg.LogFormat, ready{p.files.ID, ln.Addr().String()})
		sdnotify.Send(p.log, sdnotify.Ready)
		defer context.AfterFunc(ctx, func() { sdnotify.Send(p.log, sdnotify.Stopping) })()
	}
	g.Go(func() error {
		defer stop()
		return d.Run(gctx)
	})
	g.Go(func() error {
		if err := p.writeTasks(gctx, resources, p.files); err != nil {
			return err
		}
		names := []string{}
		for _, t := range p.files.Tasks {
			names = append(names, t.Name)
		}
		d.Expect(names)
		p.followSignals(gctx, resources)
		return nil
	})
	return g.Wait()
}

// followSignals reads the files again on each SIGHUP, until ctx ends. The log
// level, the tasks and the providers change at once. An error of the files changes
// nothing.
func (p *process) followSignals(ctx context.Context, resources pb.ResourceServiceClient) {
	for {
		select {
		case <-ctx.Done():
			return
		case <-p.sighup:
		}
		sdnotify.Send(p.log, sdnotify.Reloading())
		files, err := config.Load(p.cfg.Paths, os.Getenv)
		if err == nil {
			err = files.CheckModules()
		}
		if err == nil {
			p.level.Set(files.LogLevel)
			p.providersOf.Store(files)
			err = p.writeTasks(ctx, resources, files)
		}
		if err != nil {
			p.log.Error("cannot reload the configuration", "err", err)
		} else {
			p.log.Info("configuration reloaded: log_level, tasks and terraform_provider; the rest needs a restart")
		}
		sdnotify.Send(p.log, sdnotify.Ready)
	}
}

// inspect prints the plan of each task of the files.
func (p *process) inspect(ctx context.Context, d *automation.Daemon, views *view.Views) error {
	ctx, stop := context.WithCancel(ctx)
	var running sync.WaitGroup
	defer running.Wait()
	defer stop()
	running.Go(func() { _ = views.Run(ctx) }) // it returns nil
	var errs []error
	for _, t := range p.files.Tasks {
		if e := t.Task.GetExec(); e != nil && len(e.Plan) == 0 {
			fmt.Fprintf(p.cfg.Stdout, "task %s: exec.plan is not set, so the task has no plan\n", t.Name)
			continue
		}
		result, err := d.Plan(ctx, t.Name, t.Task)
		if err != nil {
			errs = append(errs, fmt.Errorf("task %s: %w", t.Name, err))
			continue
		}
		c := result.Changes
		fmt.Fprintf(p.cfg.Stdout, "task %s: %d to add, %d to change, %d to destroy\n", t.Name, c.Add, c.Change, c.Destroy)
		for line := range strings.Lines(result.Plan) {
			fmt.Fprintln(p.cfg.Stdout, output.Printable(strings.TrimRight(line, "\n")))
		}
	}
	return settings.Join(errs...)
}

// ready is the line of a daemon that runs.
type ready struct{ id, api string }

func (r ready) String() string { return fmt.Sprintf("wanfed sync %s: api %s", r.id, r.api) }

// openBackend returns the function that opens the backend of a run: that of the
// daemon, or the configured one.
func (p *process) openBackend(own *state.Backend) func(context.Context, state.Claim, string) (driver.Backend, func() error, error) {
	if b := p.files.Terraform.Backend; b != nil {
		return func(context.Context, state.Claim, string) (driver.Backend, func() error, error) {
			return *b, func() error { return nil }, nil
		}
	}
	return func(ctx context.Context, c state.Claim, run string) (driver.Backend, func() error, error) {
		env, end := own.Open(ctx, c, run)
		return driver.Backend{Type: "http", Env: env}, end, nil
	}
}

// providers returns the providers of a task, with the present values of their
// templates.
func (p *process) providers(ctx context.Context, t *pb.Task) ([]driver.Provider, error) {
	key := func(ctx context.Context, path string) (string, error) {
		k, _, err := p.to.http.ReadKey(ctx, path, api.QueryOptions{})
		switch {
		case err != nil:
			return "", err
		case k == nil:
			return "", fmt.Errorf("key %q does not exist", path)
		}
		return string(k.Value), nil
	}
	return p.providersOf.Load().Evaluate(ctx, t, config.Lookups{Env: os.Getenv, Key: key})
}
