// SPDX-License-Identifier: MPL-2.0

package process

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/wanfed/wanfed/automation/driver"
)

const (
	// guardName is argument 0 of a process that is a guard.
	guardName = "wanfed-sync-guard"
	// untilName is the file in the directory of a task with the time until which
	// its programs may run: nanoseconds since the boot.
	untilName = "run.until"
	// guardInterval is the time between two readings of that file.
	guardInterval = 500 * time.Millisecond
)

// init makes each program that links this package a guard, if Guard has started
// it as one. A guard is a process of its own, and needs no other file.
func init() {
	if os.Args[0] == guardName {
		signal.Ignore(syscall.SIGINT, syscall.SIGTERM, syscall.SIGHUP)
		guard(os.Stdin)
		os.Exit(0)
	}
}

// order is a line of JSON that a guard receives.
type order struct {
	Dir string `json:"dir"`
	// End reports that the run in Dir has ended.
	End bool `json:"end,omitempty"`
}

// Guard ends the programs of runs whose time is over, in a process that survives
// this one. The zero value is ready for use. The process runs from the first
// call of Permit until Close, and then until the last program has ended.
type Guard struct {
	mu      sync.Mutex
	dirs    map[string]bool // of runs in progress
	orders  *json.Encoder   // nil: no process
	in      io.Closer
	pid     int
	process sync.WaitGroup
}

// Permit lets the programs of the run in a directory run until a time. A later
// call replaces the time. If the time passes, the programs are interrupted, and
// killed after the grace period, also if this process has ended or is stopped. A
// process that runs programs in the same directory later calls Permit too. Zero:
// the run has ended.
func (g *Guard) Permit(dir string, until time.Time) error {
	g.mu.Lock()
	defer g.mu.Unlock()
	if until.IsZero() {
		delete(g.dirs, dir)
		g.sendLocked(order{Dir: dir, End: true})
		err := os.Remove(filepath.Join(dir, untilName))
		if errors.Is(err, os.ErrNotExist) {
			err = nil
		}
		return err
	}
	if err := writeUntil(dir, until); err != nil {
		return fmt.Errorf("limit the time of the run: %w", err)
	}
	if g.dirs == nil {
		g.dirs = make(map[string]bool)
	}
	known := g.dirs[dir]
	g.dirs[dir] = true
	if g.orders == nil {
		return g.startLocked()
	}
	if !known {
		g.sendLocked(order{Dir: dir})
	}
	return nil
}

// startLocked starts a process, and sends it the directories.
func (g *Guard) startLocked() error {
	cmd := exec.Command("/proc/self/exe")
	cmd.Args, cmd.Dir, cmd.Env = []string{guardName}, "/", []string{}
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true} // no signal of a terminal reaches it
	in, err := cmd.StdinPipe()
	if err == nil {
		err = cmd.Start()
	}
	if err != nil {
		return fmt.Errorf("start the guard of the run: %w", err)
	}
	orders := json.NewEncoder(in)
	g.in, g.orders, g.pid = in, orders, cmd.Process.Pid
	g.process.Go(func() {
		_ = cmd.Wait() // ends with an error only if it was killed
		g.mu.Lock()
		defer g.mu.Unlock()
		if g.orders == orders { // the next call of Permit starts another process
			g.orders = nil
		}
	})
	for dir := range g.dirs {
		g.sendLocked(order{Dir: dir})
	}
	return nil
}

// sendLocked sends an order, if there is a process. It fails only if the process
// has just ended.
func (g *Guard) sendLocked(o order) {
	if g.orders != nil {
		_ = g.orders.Encode(o)
	}
}

// Close ends the process, when all runs have ended.
func (g *Guard) Close() {
	g.mu.Lock()
	if g.orders != nil {
		_ = g.in.Close()
		g.orders = nil
	}
	g.mu.Unlock()
	g.process.Wait()
}

// guard executes the orders of in, and returns when the programs have ended.
func guard(in io.Reader) {
	var watches sync.WaitGroup
	defer watches.Wait()
	orphaned := make(chan struct{})
	defer close(orphaned)
	ends := make(map[string]context.CancelFunc)
	for dec := json.NewDecoder(in); ; {
		var o order
		if dec.Decode(&o) != nil {
			return
		}
		if end := ends[o.Dir]; end != nil {
			end()
			delete(ends, o.Dir)
		}
		if !o.End {
			ctx, end := context.WithCancel(context.Background())
			ends[o.Dir] = end
			watches.Go(func() { watch(ctx, orphaned, o.Dir) })
		}
	}
}

// watch ends the programs in a directory if their time is over, until ctx ends.
// When the daemon has ended, watch waits for the last program, and returns.
func watch(ctx context.Context, orphaned <-chan struct{}, dir string) {
	tick := time.NewTicker(guardInterval)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-orphaned:
			waitOrphan(dir)
			return
		case <-tick.C:
		}
		// The daemon interrupts the program first, unless it is stopped.
		if left, limited := timeLeft(dir); limited && left < -guardDelay {
			endNow(ctx, dir)
		}
	}
}

// waitOrphan waits for the program in a directory, with its timeout, and ends it
// if its time is over. A later daemon may extend the time.
func waitOrphan(dir string) {
	ctx, cancel := context.WithCancel(context.Background())
	var wg sync.WaitGroup
	defer wg.Wait()
	defer cancel()
	wg.Go(func() {
		defer cancel()
		tick := time.NewTicker(guardInterval)
		defer tick.Stop()
		for {
			if left, limited := timeLeft(dir); limited && left < -guardDelay {
				return
			}
			select {
			case <-ctx.Done():
				return
			case <-tick.C:
			}
		}
	})
	if rec, err := Find(dir); err == nil && rec != nil {
		_ = rec.Wait(ctx)
	}
}

// endNow ends the program in a directory now.
func endNow(ctx context.Context, dir string) {
	ctx, cancel := context.WithCancel(ctx)
	cancel()
	if rec, err := Find(dir); err == nil && rec != nil {
		_ = rec.Wait(ctx)
	}
}

// writeUntil writes the time until which the programs in a directory may run.
func writeUntil(dir string, until time.Time) error {
	now, err := sinceBoot()
	if err == nil {
		err = os.MkdirAll(dir, 0o700)
	}
	if err != nil {
		return err
	}
	f, err := os.OpenFile(filepath.Join(dir, untilName), os.O_CREATE|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	// One write of constant size, so that a reader never finds a part of it.
	_, err = fmt.Fprintf(f, "%020d\n", now+time.Until(until))
	return errors.Join(err, f.Close())
}

// timeLeft returns the time for which the programs in a directory may run.
// limited is false if there is no limit.
func timeLeft(dir string) (left time.Duration, limited bool) {
	b, err := os.ReadFile(filepath.Join(dir, untilName))
	if err != nil {
		return 0, false
	}
	until, err := strconv.ParseInt(strings.TrimSpace(string(b)), 10, 64)
	if err != nil {
		return 0, false
	}
	now, err := sinceBoot()
	return time.Duration(until) - now, err == nil
}

// mayStart returns driver.ErrInterrupted if the time for programs in a directory
// is over.
func mayStart(dir string) error {
	if left, limited := timeLeft(dir); limited && left <= 0 {
		return driver.ErrInterrupted
	}
	return nil
}
