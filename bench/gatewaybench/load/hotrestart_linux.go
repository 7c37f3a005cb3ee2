// SPDX-License-Identifier: MPL-2.0

package load

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sync/errgroup"
)

const (
	// hotRestartCount is how many times the process is replaced in one run.
	hotRestartCount = 2
	// hotRestartTimeout bounds one hot restart.
	hotRestartTimeout = 15 * time.Second
)

// hotRestart compares new and open connections before and during hot restarts
// of the proxy. A connection that is lost in either period counts as lost.
func (c *client) hotRestart(ctx context.Context) (Figures, error) {
	conns, err := c.openAll(ctx, opEcho, c.spec.Conns)
	if err != nil {
		return nil, err
	}
	p := c.newPinger(conns)
	p.start()
	before, _, err := c.openComplete(ctx, p)
	if err != nil {
		return nil, err
	}
	var g errgroup.Group
	g.Go(func() error { return c.replaceProxy(ctx, c.spec.Routes.PID) })
	during, sp, err := c.openComplete(ctx, p)
	if err = errors.Join(err, g.Wait()); err != nil {
		return nil, err
	}
	f := during.compare(before, sp)
	f[Lost] += float64(p.lost)
	f[HotRestarts] = hotRestartCount
	if f[Lost] > 0 {
		err = fmt.Errorf("%v connections lost: %w", f[Lost], errors.Join(during.lastErr, p.lastErr))
	}
	return f, err
}

// replaceProxy requests a hot restart of process pid, then of the process that
// replaced it.
func (c *client) replaceProxy(ctx context.Context, pid int) error {
	for range hotRestartCount {
		if err := sleep(ctx, c.spec.Duration/(2*hotRestartCount)); err != nil {
			return err
		}
		before, err := ProcessTree(pid)
		if err == nil {
			err = syscall.Kill(pid, syscall.SIGUSR2)
		}
		if err != nil {
			return err
		}
		old := pid
		for end := time.Now().Add(hotRestartTimeout); pid == old || listens(old, c.to.Port); {
			if time.Now().After(end) {
				return fmt.Errorf("process %d was not replaced within %v", old, hotRestartTimeout)
			}
			if err := sleep(ctx, 5*time.Millisecond); err != nil {
				return err
			}
			current, err := ProcessTree(old)
			if err != nil {
				return err
			}
			for _, child := range current {
				if !slices.Contains(before, child) {
					pid = child
				}
			}
		}
	}
	return nil
}

// listens reports whether a process has the listening socket of a port.
func listens(pid, port int) bool {
	table, err := os.ReadFile("/proc/net/tcp")
	if err != nil {
		return false
	}
	const listening = "0A" // value of the field st
	var sockets []string
	for line := range strings.Lines(string(table)) {
		if f := strings.Fields(line); len(f) > 9 && f[3] == listening &&
			strings.HasSuffix(f[1], fmt.Sprintf(":%04X", port)) {
			sockets = append(sockets, "socket:["+f[9]+"]")
		}
	}
	dir := filepath.Join("/proc", strconv.Itoa(pid), "fd")
	files, _ := os.ReadDir(dir)
	return slices.ContainsFunc(files, func(e os.DirEntry) bool {
		to, _ := os.Readlink(filepath.Join(dir, e.Name()))
		return slices.Contains(sockets, to)
	})
}
