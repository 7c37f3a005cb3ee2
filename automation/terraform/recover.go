// SPDX-License-Identifier: MPL-2.0

package terraform

import (
	"context"
	"errors"
	"os"
	"path/filepath"

	"github.com/wanfed/wanfed/automation/driver"
	"github.com/wanfed/wanfed/automation/process"
)

// Recover implements driver.Driver. The output of Terraform shows whether it has
// completed a run. State is errored.tfstate. With another backend than "http",
// there is none: the next run stores the file.
func (d *Driver) Recover(ctx context.Context, w *driver.Work) (*driver.Recovered, error) {
	rec, err := process.Find(w.Dir)
	if rec == nil || err != nil {
		return nil, err
	}
	r := &driver.Recovered{ID: rec.ID}
	r.Err = rec.Wait(ctx)
	out := readOutput(w.Dir, 0)
	r.Result = driver.Result{Changes: out.changes, Log: process.Shorten(out.text)}
	_, r.Ended = process.Log(w.Dir, 0)
	switch {
	case out.complete:
		r.Err = nil
	case r.Err != nil:
	case len(out.errors) > 0:
		r.Err = out.err("terraform " + rec.Step)
	default:
		r.Err = driver.ErrLost
	}
	if w.Backend.Type != backendHTTP {
		return r, nil
	}
	r.StatePath = filepath.Join(w.Dir, erroredState)
	r.State, err = os.ReadFile(r.StatePath)
	if errors.Is(err, os.ErrNotExist) {
		err = nil
	}
	return r, err
}
