// SPDX-License-Identifier: MPL-2.0

package demo

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"time"
)

// Config configures a demo.
type Config struct {
	// Program is the path of the wanfed binary. Default: the running one.
	Program string
	// Datacenters is the number of datacenters, 2 to 9. Default: 3. The first, dc1,
	// is the primary.
	Datacenters int
	// Servers is the number of servers in each datacenter: 1, 3 or 5. Default: 1.
	Servers int
	// Keep is a directory for certificates, data and logs, which stay there. It must
	// not exist or be empty. Default: a temporary one, removed at the end.
	Keep string
	// Once ends the demo as soon as the federation works. Otherwise the demo runs
	// until its context ends.
	Once bool
	// JSON makes one line of JSON the only output, once the federation works.
	JSON bool
	// Timeout bounds the time from the first process to the last proof. Default:
	// 60 s.
	Timeout time.Duration
	// Out receives progress and results, and Err the ends of the logs after a
	// failure. Both are required.
	Out, Err io.Writer
}

func (c Config) withDefaults() (Config, error) {
	if c.Program == "" {
		exe, err := os.Executable()
		if err != nil {
			return c, fmt.Errorf("find this program's file: %w", err)
		}
		c.Program = exe
	}
	if c.Datacenters == 0 {
		c.Datacenters = 3
	}
	if c.Servers == 0 {
		c.Servers = 1
	}
	if c.Timeout == 0 {
		c.Timeout = 60 * time.Second
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
		switch entries, err := os.ReadDir(c.Keep); {
		case errors.Is(err, os.ErrNotExist):
		case err != nil:
			errs = append(errs, fmt.Errorf("directory to keep: %w", err))
		case len(entries) > 0:
			errs = append(errs, fmt.Errorf("directory %s is not empty: name a new one", c.Keep))
		}
	}
	return errors.Join(errs...)
}

// stopTimeout is the time in which all processes must stop. Processes that
// still run after it are killed.
const stopTimeout = 10 * time.Second

// Run starts the federation, verifies that it works and prints its state. It
// runs until ctx ends. With Once, it ends after it has printed the state. Then
// it stops all processes and removes its files. It returns an error if the
// federation was not complete in time, or if a process ended before the
// federation was complete. With Once, it also returns an error if a process did
// not stop cleanly.
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
	if err := f.show(ctx); err != nil || cfg.Once {
		return err
	}
	f.follow(ctx)
	return nil
}

// makeDir creates the directory of the demo's files. remove removes it, unless it
// is kept.
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
