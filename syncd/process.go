// SPDX-License-Identifier: MPL-2.0

package syncd

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"path/filepath"

	"golang.org/x/sync/errgroup"

	"github.com/wanfed/wanfed/api"
	"github.com/wanfed/wanfed/api/pb"
	"github.com/wanfed/wanfed/automation"
	"github.com/wanfed/wanfed/automation/config"
	"github.com/wanfed/wanfed/automation/driver"
	"github.com/wanfed/wanfed/automation/exec"
	"github.com/wanfed/wanfed/automation/state"
	"github.com/wanfed/wanfed/automation/task"
	"github.com/wanfed/wanfed/automation/view"
	"github.com/wanfed/wanfed/internal/sdnotify"
	"github.com/wanfed/wanfed/internal/settings"
	"github.com/wanfed/wanfed/internal/version"
	"github.com/wanfed/wanfed/lease"
)

// Mode is what Run does with the tasks.
type Mode int

// The modes.
const (
	Daemon Mode = iota // run tasks until the context ends
	Once               // run each task once
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

// Run runs a daemon until ctx ends. It returns earlier in the mode Once, with
// the errors of all tasks.
func Run(ctx context.Context, cfg Config) (err error) {
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
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, to.close()) }()
	p := &process{cfg: cfg, files: files, to: to, keyPath: keyPath, keys: keys, log: logger}
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
}

// keysOf returns the path of the file with the keys of states, and its keys.
// Daemons of one cluster need the same keys, so only another daemon creates a
// file.
func keysOf(files *config.Config) (path string, keys *state.Keys, err error) {
	path = files.StateKeyFile
	if path == "" && files.Cluster != "" {
		return "", nil, errors.New("state_key_file is required with high_availability, because all daemons of the cluster " +
			"need the same keys: create the file with: wanfed task state key FILE")
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
	views, err := view.New(view.NewSource(p.to.http), view.Config{Datacenter: p.to.dc, Logger: p.log})
	if err != nil {
		return err
	}
	d, err := automation.New(automation.Config{
		ID: p.files.ID, Group: p.files.Group, Dir: p.files.WorkingDir, MaxRunning: p.files.MaxRunning,
		Buffer: p.files.Buffer, Lease: p.files.Lease, Resources: resources, Leases: lease.NewClient(p.to.conn),
		Views: views, States: states,
		Drivers:   map[string]driver.Driver{task.DriverExec: exec.Driver{}},
		Providers: p.providers, Required: p.files.Terraform.Required, Key: p.keys.DigestKey(), Address: p.files.Address,
		Version: version.Version, Once: p.cfg.Mode == Once, Logger: p.log,
	})
	if err != nil {
		return err
	}
	ctx, stop := context.WithCancel(ctx)
	defer stop()
	g, gctx := errgroup.WithContext(ctx)
	g.Go(func() error { return watchIdentity(gctx) })
	g.Go(func() error {
		defer stop()
		return d.Run(gctx)
	})
	g.Go(func() error { return p.writeTasks(gctx, resources, d) })
	settings.PrintReady(p.cfg.Stdout, p.cfg.LogFormat, readyLine(p.files.ID))
	sdnotify.Send(p.log, sdnotify.Ready)
	defer context.AfterFunc(ctx, func() { sdnotify.Send(p.log, sdnotify.Stopping) })()
	return g.Wait()
}

type readyLine string

func (id readyLine) String() string { return "sync daemon " + string(id) + " is running" }

// providers returns the providers of a task, with the present values of their
// templates.
func (p *process) providers(ctx context.Context, t *pb.Task) ([]driver.Provider, error) {
	return p.files.Evaluate(ctx, t, config.Lookups{Env: os.Getenv, Key: func(ctx context.Context, path string) (string, error) {
		k, _, err := p.to.http.ReadKey(ctx, path, api.QueryOptions{})
		switch {
		case err != nil:
			return "", err
		case k == nil:
			return "", fmt.Errorf("key %q does not exist", path)
		}
		return string(k.Value), nil
	}})
}
