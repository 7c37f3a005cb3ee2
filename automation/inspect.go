// SPDX-License-Identifier: MPL-2.0

package automation

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"

	"github.com/wanfed/wanfed/api/pb"
	"github.com/wanfed/wanfed/automation/driver"
	"github.com/wanfed/wanfed/automation/state"
	"github.com/wanfed/wanfed/automation/task"
	"github.com/wanfed/wanfed/resource"
)

// Plan returns what a run of a task would change. The task need not be stored,
// and nothing is. Plan blocks until the data of the task is complete and the
// driver has ended. The Views of the daemon must run.
func (d *Daemon) Plan(ctx context.Context, name string, t *pb.Task) (driver.Result, error) {
	w, drv, err := d.driverWork(ctx, name, t)
	if err != nil {
		return driver.Result{}, err
	}
	if w.Dir, err = os.MkdirTemp(d.cfg.Dir, ".plan-"); err != nil {
		return driver.Result{}, err
	}
	defer os.RemoveAll(w.Dir)
	if t.Driver == task.DriverTerraform {
		end, err := d.planBackend(ctx, w)
		if err != nil {
			return driver.Result{}, err
		}
		defer end()
	}
	v, err := d.awaitValues(ctx, name, t)
	if err != nil {
		return driver.Result{}, err
	}
	return drv.Run(ctx, w, driver.Request{ID: resource.NewUID(), Mode: driver.Plan, Inputs: v.inputs})
}

// planBackend sets the backend of a plan: that of the task, or an empty one if
// the task has no state.
func (d *Daemon) planBackend(ctx context.Context, w *driver.Work) (end func() error, err error) {
	st, err := d.cfg.States.Read(ctx, w.Name)
	if err != nil && !errors.Is(err, resource.ErrNotFound) {
		return nil, err
	}
	if len(st.GetVersions()) == 0 {
		w.Backend = driver.Backend{Type: "local"}
		return func() error { return nil }, nil
	}
	w.Backend, end, err = d.cfg.Backend(ctx, state.Claim{Task: w.Name, Instance: d.cfg.ID}, "")
	return end, err
}

// awaitValues returns the data of a task as soon as it is complete.
func (d *Daemon) awaitValues(ctx context.Context, name string, t *pb.Task) (values, error) {
	w := &work{name: name}
	w.mu.Lock()
	err := w.openViewsLocked(d.cfg.Views, t)
	w.mu.Unlock()
	if err != nil {
		return values{}, err
	}
	defer w.closeViews()
	for i, v := range w.views {
		for complete := v == nil; !complete; {
			changed := v.Changed()
			if _, complete = v.Value(); complete {
				break
			}
			select {
			case <-changed:
			case <-ctx.Done():
				return values{}, fmt.Errorf("no data of %s: %w", describe(slices.Concat(t.Conditions, t.Inputs)[i]), context.Cause(ctx))
			}
		}
	}
	v, missing, ok := w.values()
	if !ok {
		return values{}, errors.New(missing)
	}
	return v, nil
}
