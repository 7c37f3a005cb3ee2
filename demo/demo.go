// SPDX-License-Identifier: MPL-2.0

package demo

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"time"
)

// Config configures a demo.
type Config struct {
	Program     string // path of the wanfed binary; default: the running program
	Datacenters int    // 2 to 9; default: 3; the first, dc1, is the primary
	Servers     int    // number of servers of each datacenter: 1 (default), 3 or 5
	// Keep is a directory that keeps certificates, data and logs. The directory
	// must be absent or empty. Default: a temporary directory, removed at the
	// end.
	Keep string
	// Once ends the demo when the federation works. Otherwise the demo runs
	// until its context ends.
	Once bool
	// JSON replaces all output by one line of JSON when the federation works.
	JSON bool
	// Timeout bounds the time from the start of the first process until the
	// federation works. Default: 60 s.
	Timeout time.Duration
	Out     io.Writer // gets progress and results; required
	Err     io.Writer // gets the last lines of the logs after a failure; required
}

func (c Config) withDefaults() (Config, error) {
	c.Datacenters, c.Servers = cmp.Or(c.Datacenters, 3), cmp.Or(c.Servers, 1)
	c.Timeout = cmp.Or(c.Timeout, 60*time.Second)
	if c.Program == "" {
		exe, err := os.Executable()
		if err != nil {
			return c, fmt.Errorf("find this program's file: %w", err)
		}
		c.Program = exe
	}
	return c, nil
}

// Validate returns all faults of c, joined, or nil.
func (c Config) Validate() error {
	c, err := c.withDefaults()
	errs := []error{err}
	if c.Datacenters < 2 || c.Datacenters > 9 {
		errs = append(errs, fmt.Errorf("%d datacenters: must be 2 to 9", c.Datacenters))
	}
	if c.Servers != 1 && c.Servers != 3 && c.Servers != 5 {
		errs = append(errs, fmt.Errorf("%d servers in each datacenter: must be 1, 3 or 5", c.Servers))
	}
	if c.Timeout < 0 {
		errs = append(errs, fmt.Errorf("timeout %v is negative", c.Timeout))
	}
	if c.Keep != "" {
		entries, err := os.ReadDir(c.Keep)
		if err != nil && !errors.Is(err, os.ErrNotExist) {
			errs = append(errs, fmt.Errorf("directory to keep: %w", err))
		}
		if len(entries) > 0 {
			errs = append(errs, fmt.Errorf("directory %s is not empty: name a new one", c.Keep))
		}
	}
	return errors.Join(errs...)
}

// stopTimeout is the time after which processes that do not stop are killed.
const stopTimeout = 10 * time.Second

// Run starts the federation, verifies that it works and prints its state. Without
// Config.Once and Config.JSON, it then starts a sync daemon. Run ends with ctx, or
// with Config.Once after it has printed the state. Then it stops all processes and
// removes its files. Run returns an error if the federation was not complete in
// time, or if a process ended before. With Config.Once, it also returns an error
// if a process did not stop cleanly.
func Run(ctx context.Context, cfg Config) (err error) {
	if err := cfg.Validate(); err != nil {
		return err
	}
	if cfg, err = cfg.withDefaults(); err != nil {
		return err
	}
	dir, remove, err := makeDir(cfg.Keep)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, remove()) }()
	f, err := newFederation(cfg, dir)
	if err != nil {
		return err
	}
	defer func() {
		if stopped := f.stop(); cfg.Once {
			err = errors.Join(err, stopped)
		}
	}()
	if err := f.start(ctx); err != nil {
		if ctx.Err() != nil && !cfg.Once {
			return nil // interrupted by the user
		}
		f.explain(cfg.Err)
		return err
	}
	if cfg.hasSync() {
		if err := f.startSync(ctx); err != nil {
			if ctx.Err() != nil {
				return nil
			}
			return err
		}
	}
	if err := f.show(ctx); err != nil || cfg.Once {
		if ctx.Err() != nil && !cfg.Once {
			return nil
		}
		return err
	}
	f.follow(ctx)
	return nil
}

// makeDir creates the directory of the demo's files. remove removes a temporary
// directory.
func makeDir(keep string) (dir string, remove func() error, err error) {
	if keep != "" {
		if err := os.MkdirAll(keep, 0o700); err != nil {
			return "", nil, fmt.Errorf("create the directory to keep: %w", err)
		}
		return keep, func() error { return nil }, nil
	}
	dir, err = os.MkdirTemp("", "wanfed-demo-")
	if err != nil {
		return "", nil, fmt.Errorf("create a temporary directory: %w", err)
	}
	return dir, func() error { return os.RemoveAll(dir) }, nil
}
