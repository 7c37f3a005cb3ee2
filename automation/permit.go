// SPDX-License-Identifier: MPL-2.0

package automation

import (
	"context"
	"fmt"
	"time"

	"github.com/wanfed/wanfed/automation/driver"
	"github.com/wanfed/wanfed/automation/process"
	"github.com/wanfed/wanfed/automation/state"
	"github.com/wanfed/wanfed/automation/task"
)

// permit lets the programs in a directory run while this daemon has the claim c,
// until release is called. The context ends when the claim does.
func (d *Daemon) permit(ctx context.Context, dir string, c state.Claim) (_ context.Context, release func(), err error) {
	name := task.LeaseName(c.Task)
	// until returns the time until which the claim is certain.
	until := func() time.Time {
		if held := d.claims.get(name); held.token == c.Epoch {
			return held.until
		}
		return time.Time{}
	}
	limit := until()
	if limit.IsZero() {
		return nil, nil, fmt.Errorf("%w: the claim has ended", driver.ErrInterrupted)
	}
	if err := d.permitUntil(dir, limit); err != nil {
		return nil, nil, err
	}
	ctx, cancel := context.WithCancel(ctx)
	renewed := make(chan struct{})
	go func() {
		defer close(renewed)
		for {
			select {
			case <-ctx.Done():
				return
			case <-time.After(min(d.cfg.Lease/renewPart, time.Until(limit))):
			}
			next := until()
			if next.IsZero() {
				d.cfg.Logger.Warn("run interrupted: another daemon may claim the task", "task", c.Task)
				cancel()
				return
			}
			if next == limit {
				continue
			}
			if err := d.permitUntil(dir, next); err != nil {
				d.cfg.Logger.Error("cannot extend the time of a run", "task", c.Task, "err", err)
				continue
			}
			limit = next
		}
	}()
	return ctx, func() {
		cancel()
		<-renewed
		if err := d.permitUntil(dir, time.Time{}); err != nil {
			d.cfg.Logger.Warn("cannot remove the limit of a run", "task", c.Task, "err", err)
		}
	}, nil
}

func (d *Daemon) permitUntil(dir string, until time.Time) error {
	if d.cfg.Permit == nil {
		return nil
	}
	return d.cfg.Permit(dir, until)
}

// othersRun returns the time for which programs of a run that another daemon has
// started may still execute.
func (d *Daemon) othersRun(w *work) time.Duration {
	run := w.state.Running
	if run == nil || run.Holder == d.claims.holder {
		return 0
	}
	// The time of these programs was over when this daemon acquired the lease.
	since := d.claims.get(task.LeaseName(w.name)).since
	return time.Until(since.Add(process.StopTime(run.Grace.AsDuration())))
}
