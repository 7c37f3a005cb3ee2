// SPDX-License-Identifier: MPL-2.0

package automation

import (
	"context"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/wanfed/wanfed/api/pb"
	"github.com/wanfed/wanfed/automation/driver"
	"github.com/wanfed/wanfed/automation/state"
	"github.com/wanfed/wanfed/automation/task"
	"github.com/wanfed/wanfed/controller"
	"github.com/wanfed/wanfed/internal/backoff"
	"github.com/wanfed/wanfed/resource"
)

const (
	// minRetry and maxRetry bound the delay until a failed run is repeated.
	minRetry = 2 * time.Second
	maxRetry = 10 * time.Minute
	// recoverRetry is the delay until a failed recovery is repeated.
	recoverRetry = 5 * time.Second
	// maxChanged bounds the names of changed objects in a run.
	maxChanged = 20
)

// run is one execution of a task.
type run struct {
	id     string // ULID
	mode   driver.Mode
	reason string
}

// refusedError reports that the guard of the task holds back a run.
type refusedError struct{ reason string }

func (e *refusedError) Error() string {
	return e.reason + "; approve it with: wanfed task approve"
}

// start executes a run in a goroutine, when it has a slot.
func (d *Daemon) start(w *work, r *pb.Resource, t *pb.Task, c state.Claim, ru run) {
	d.inBackground(w, func(ctx context.Context) {
		queued := time.Now()
		if err := d.slots.Acquire(ctx, 1); err != nil {
			return
		}
		defer d.slots.Release(1)
		select {
		case <-d.stopping:
			return
		default:
		}
		w.mu.Lock()
		w.active.started = true
		w.mu.Unlock()
		d.metrics.started(time.Since(queued))
		d.execute(ctx, w, r, t, c, ru)
	})
}

// inBackground calls f in a goroutine, as the active run of w.
func (d *Daemon) inBackground(w *work, f func(ctx context.Context)) {
	ctx, cancel := context.WithCancel(d.runCtx)
	w.mu.Lock()
	w.active = &activeRun{cancel: cancel}
	w.mu.Unlock()
	d.runs.Go(func() {
		defer cancel()
		defer func() {
			w.mu.Lock()
			w.active = nil
			w.mu.Unlock()
			d.notify(w.name)
		}()
		f(ctx)
	})
}

// execute executes a run and stores its result.
func (d *Daemon) execute(ctx context.Context, w *work, r *pb.Resource, t *pb.Task, c state.Claim, ru run) {
	log := d.cfg.Logger.With("task", w.name, "run", ru.id)
	v, _, ok := w.values()
	definition, err := d.definition(ctx, w.name, t)
	if !ok || err != nil || d.claims.token(task.LeaseName(w.name)) != c.Epoch {
		return // the reconciler decides again
	}
	seen := digests{v.trigger, v.inputs.Digest(), definition}
	record := &pb.TaskRun{
		Task: w.name, Mode: string(ru.mode), Trigger: ru.reason, Instance: c.Instance, Epoch: c.Epoch,
		StartedAt: timestamppb.New(d.clock()), Result: task.Running,
	}
	names, _ := w.changes(t, v)
	record.Changed = names[:min(len(names), maxChanged)]
	// The claim is verified by the write that records the run.
	var old []string
	err = d.update(ctx, w, c, func(st *pb.TaskState) {
		if len(st.Runs) == 0 || st.Runs[0] != ru.id {
			st.Runs = slices.Insert(st.Runs, 0, ru.id)
		}
		old = st.Runs[min(len(st.Runs), task.MaxRuns):]
		st.Runs = st.Runs[:min(len(st.Runs), task.MaxRuns)]
		st.Running = &pb.TaskStateRun{Id: ru.id, Mode: string(ru.mode), Reason: ru.reason, Trigger: seen.trigger,
			Inputs: seen.inputs, Task: seen.definition, StartedAt: record.StartedAt, Indexes: v.indexes,
			Holder: d.claims.holder, Grace: durationpb.New(task.Grace(t))}
	})
	if err != nil {
		if ctx.Err() == nil {
			log.Warn("run not started", "err", err)
		}
		return
	}
	d.writeRun(ctx, r, ru.id, record)
	log.Info("run started", "mode", ru.mode, "trigger", ru.reason)
	result, err := d.drive(ctx, w, t, c, ru, v, seen)
	d.finish(w, r, c, ru, record, outcome{result: result, err: err, seen: seen, keys: v.keys, indexes: v.indexes})
	d.prune(w.name, old)
}

// drive calls the driver.
func (d *Daemon) drive(
	ctx context.Context, w *work, t *pb.Task, c state.Claim, ru run, v values, seen digests,
) (result driver.Result, err error) {
	dw, drv, err := d.driverWork(ctx, w.name, t)
	if err != nil {
		return result, err
	}
	ctx, release, err := d.permit(ctx, dw.Dir, c)
	if err != nil {
		return result, err
	}
	defer release()
	closeBackend, err := d.openBackend(ctx, dw, c, ru.id)
	if err != nil {
		return result, err
	}
	defer func() {
		if refused := closeBackend(); err != nil && refused != nil {
			err = fmt.Errorf("%w: %w", err, refused)
		}
	}()
	req := driver.Request{ID: ru.id, Mode: ru.mode, Inputs: v.inputs}
	if t.Guard != nil && ru.mode == driver.Apply {
		approved := w.state.Approved == seen.inputs+seen.definition
		had := w.state.AppliedAt != nil
		req.Guard = func(ch driver.Changes) error {
			if approved {
				return nil
			}
			return guard(t.Guard, ch, had && v.empty())
		}
	}
	result, err = drv.Run(ctx, dw, req)
	if err != nil && ru.mode != driver.Plan {
		if _, leftErr := d.recovered(d.storeCtx, drv, dw, c); leftErr != nil {
			err = fmt.Errorf("%w; %w", err, leftErr)
			w.recovered = false // the next run would remove the state
		}
	}
	return result, err
}

// openBackend sets the backend of Terraform's state for a run. The caller calls
// closeBackend.
func (d *Daemon) openBackend(
	ctx context.Context, w *driver.Work, c state.Claim, run string,
) (closeBackend func() error, err error) {
	if w.Task.Driver != task.DriverTerraform {
		return func() error { return nil }, nil
	}
	w.Backend, closeBackend, err = d.cfg.Backend(ctx, c, run)
	return closeBackend, err
}

// guard returns a *refusedError if g holds back a run with the changes. emptied
// reports that the conditions had data at the last run, and have none now.
func guard(g *pb.TaskGuard, ch driver.Changes, emptied bool) error {
	limit, err := task.MaxDestroy(g.MaxDestroy, ch.Total)
	switch {
	case err != nil:
		return err
	case ch.Add+ch.Change+ch.Destroy == 0:
		return nil
	case g.Approve:
		return &refusedError{"every run of the task needs an approval"}
	case ch.Destroy > limit:
		return &refusedError{fmt.Sprintf("the run would destroy %d of %d resources: max_destroy is %s", ch.Destroy, ch.Total, g.MaxDestroy)}
	case g.EmptyInput && emptied:
		return &refusedError{"the conditions have no data any more"}
	}
	return nil
}

// outcome is how a run ended.
type outcome struct {
	result driver.Result
	err    error
	seen   digests
	keys   []map[string]string
	// indexes are those of the data.
	indexes []uint64
	ended   time.Time // zero: now
}

// resultOf returns the value of TaskRun.result for an error of a driver.
func resultOf(err error) string {
	var refused *refusedError
	switch {
	case err == nil:
		return task.Succeeded
	case errors.As(err, &refused):
		return task.Refused
	case errors.Is(err, driver.ErrTimedOut):
		return task.TimedOut
	case errors.Is(err, driver.ErrInterrupted):
		return task.Interrupted
	case errors.Is(err, driver.ErrLost):
		return task.Lost
	}
	return task.Failed
}

// finish stores the result of a run: in the run, and in the state of the task.
// It retries while the servers are unreachable.
func (d *Daemon) finish(w *work, r *pb.Resource, c state.Claim, ru run, record *pb.TaskRun, o outcome) {
	ctx := d.storeCtx
	if o.ended.IsZero() {
		o.ended = d.clock()
	}
	record.EndedAt, record.Result = timestamppb.New(o.ended), resultOf(o.err)
	record.Log, record.Plan = o.result.Log, o.result.Plan
	if o.err != nil {
		record.Error = o.err.Error()
	}
	ch := o.result.Changes
	record.Changes = &pb.TaskChanges{Add: uint32(ch.Add), Change: uint32(ch.Change), Destroy: uint32(ch.Destroy), Total: uint32(ch.Total)}
	log := d.cfg.Logger.With("task", w.name, "run", ru.id)
	// The run is written first: a reader of the state then finds its result.
	written := d.writeRun(ctx, r, ru.id, record)
	err := d.update(ctx, w, c, func(st *pb.TaskState) { conclude(st, ru, record, o) })
	switch {
	case err != nil:
		log.Error("cannot store the result of the run", "result", record.Result, "err", err)
		w.state = nil
	case o.err == nil && ru.mode == driver.Apply:
		w.keys, w.keysTrigger = o.keys, o.seen.trigger
	case o.err == nil && ru.mode == driver.Destroy:
		w.destroyed = true
	}
	if !written { // the servers may be reachable again
		d.writeRun(ctx, r, ru.id, record)
	}
	d.metrics.ended(record)
	if o.err != nil {
		log.Warn("run ended", "result", record.Result, "err", o.err)
	} else {
		log.Info("run ended", "result", record.Result, "add", ch.Add, "change", ch.Change, "destroy", ch.Destroy)
	}
	if record.Result != task.Lost { // the task runs again
		d.once.finish(w.name, o.err)
	}
}

// conclude changes the state of a task for a run that has ended. It changes
// nothing if the run is not the one in progress.
func conclude(st *pb.TaskState, ru run, record *pb.TaskRun, o outcome) {
	if st.Running.GetId() != ru.id {
		return // an earlier attempt of the same write
	}
	st.Running = nil
	if ru.reason == byRequest {
		st.Request = ru.id
	}
	key := o.seen.inputs + o.seen.definition
	switch {
	case record.Result == task.Interrupted || record.Result == task.Lost:
		return // the decision is the same as before the run
	case ru.mode == driver.Plan:
		st.DriftCheckedAt = record.EndedAt
		if record.Result == task.Succeeded {
			st.Drift = "none"
			if c := record.Changes; c.Add+c.Change+c.Destroy > 0 {
				st.Drift = "found"
			}
		}
		return
	}
	if ru.reason == bySchedule {
		st.ScheduledAt = record.StartedAt
	}
	switch record.Result {
	case task.Succeeded:
		st.AppliedTrigger, st.AppliedInputs, st.AppliedTask = o.seen.trigger, o.seen.inputs, o.seen.definition
		st.AppliedAt, st.AppliedIndexes = record.EndedAt, o.indexes
		st.Failures, st.RetryAt, st.Failed, st.Refused, st.Approved = 0, nil, "", "", ""
		st.Drift, st.DriftCheckedAt = "", nil
	case task.Refused:
		st.Refused = key
	default:
		if st.Failed != key {
			st.Failures = 0
		}
		st.Failures++
		st.RetryAt = timestamppb.New(o.ended.Add(backoff.Delay(int(st.Failures), minRetry, maxRetry)))
		st.Failed = key
	}
}

// recover looks for runs that an earlier daemon left behind, and stores their
// results.
func (d *Daemon) recover(w *work, r *pb.Resource, t *pb.Task, c state.Claim) {
	d.inBackground(w, func(ctx context.Context) {
		w.mu.Lock()
		w.active.started = true
		w.mu.Unlock()
		if w.recoverErr = d.recoverRun(ctx, w, r, t, c); w.recoverErr != nil {
			w.recoverAfter = time.Now().Add(recoverRetry)
		}
		if w.recoverErr != nil && ctx.Err() == nil {
			d.cfg.Logger.Error("cannot recover an earlier run", "task", w.name, "err", w.recoverErr)
		}
	})
}

func (d *Daemon) recoverRun(ctx context.Context, w *work, r *pb.Resource, t *pb.Task, c state.Claim) error {
	running := w.state.Running
	dw, drv, err := d.driverWork(ctx, w.name, t)
	if err != nil {
		return err
	}
	ctx, release, err := d.permit(ctx, dw.Dir, c)
	if err != nil {
		return err
	}
	defer release()
	closeBackend, err := d.openBackend(ctx, dw, c, running.GetId())
	if err != nil {
		return err
	}
	defer closeBackend()
	found, err := d.recovered(ctx, drv, dw, c)
	if err != nil {
		return err
	}
	if _, err := d.cfg.States.Collect(ctx, c); err != nil && ctx.Err() == nil {
		d.cfg.Logger.Warn("cannot delete unused parts of states", "task", w.name, "err", err)
	}
	w.recovered = true
	if running == nil {
		return nil
	}
	o := outcome{err: driver.ErrLost, seen: digests{running.Trigger, running.Inputs, running.Task}, indexes: running.Indexes}
	if found != nil && found.ID == running.Id {
		o.result, o.err, o.ended = found.Result, found.Err, found.Ended
		if o.err != nil && !errors.Is(o.err, driver.ErrLost) { // perhaps because the daemon had ended
			o.err = fmt.Errorf("%w: %w", driver.ErrLost, found.Err)
		}
	}
	ru := run{running.Id, driver.Mode(running.Mode), running.Reason}
	d.finish(w, r, c, ru, &pb.TaskRun{
		Task: w.name, Mode: running.Mode, Trigger: running.Reason, Instance: c.Instance, Epoch: c.Epoch,
		StartedAt: running.StartedAt,
	}, o)
	return nil
}

// recovered returns the outcome of the last run in the directory of a task, and
// stores the state that the run could not store. It then removes the file of the
// state. A state that a later run has superseded is kept in a file.
func (d *Daemon) recovered(
	ctx context.Context, drv driver.Driver, w *driver.Work, c state.Claim,
) (*driver.Recovered, error) {
	found, err := drv.Recover(ctx, w)
	if err != nil || found == nil || found.State == nil {
		return found, err
	}
	_, err = d.cfg.States.Import(ctx, c, found.State, state.ImportOptions{Run: found.ID})
	switch {
	case errors.Is(err, state.ErrSuperseded):
		// To wait would not help: the later runs did not know the state.
		why := err
		var path string
		if path, err = d.cfg.Keep(c, found.ID, found.State); err == nil {
			d.cfg.Logger.Error("state of an earlier run not stored", "task", w.Name, "run", found.ID, "path", path, "err", why)
		}
	case errors.Is(err, state.ErrObsolete):
		err = fmt.Errorf("%w: compare it with the output of wanfed task state pull %s: if the stored state is right, remove the file; "+
			"if the file is right: wanfed task state import %s %s --force", err, w.Name, w.Name, found.StatePath)
	case errors.Is(err, resource.ErrInvalid): // Terraform was killed while it wrote the file
		err = fmt.Errorf("%w: if the file is damaged, remove it: the stored state does not have what the run has created last", err)
	}
	if err == nil {
		err = os.Remove(found.StatePath)
	}
	if err != nil {
		return nil, fmt.Errorf("store the state that run %s left in %s: %w", found.ID, found.StatePath, err)
	}
	return found, nil
}

// finalize ends a task that is being deleted, when an operator has decided
// whether its infrastructure is kept.
func (d *Daemon) finalize(
	ctx context.Context, env *controller.Env, w *work, r *pb.Resource, t *pb.Task, c state.Claim,
) error {
	switch {
	case t.OnDelete == "":
		return env.WriteStatus(ctx, r, condition("Ready", "Undecided",
			fmt.Sprintf("the task is being deleted: run wanfed task delete %s with --keep or --destroy", w.name)))
	case t.OnDelete == task.Destroy && len(w.state.Versions) > 0 || t.OnDelete == task.Destroy && t.Driver == task.DriverExec:
		if w.destroyed {
			break
		}
		if wait := w.state.RetryAt.AsTime().Sub(d.clock()); w.state.Failures > 0 && wait > 0 && wait <= maxRetry*5/4 {
			time.AfterFunc(wait, func() { d.notify(w.name) })
			return nil
		}
		if err := d.openViews(w, t); err != nil {
			return err
		}
		d.start(w, r, t, c, run{id: resource.NewUID(), mode: driver.Destroy, reason: "deletion"})
		return nil
	}
	if err := d.cfg.States.Delete(ctx, c); err != nil {
		return err
	}
	next := &pb.Resource{Id: r.GetId(), Version: r.GetVersion(), Data: r.GetData(), Metadata: map[string]string{}}
	for key, value := range r.GetMetadata() {
		next.Metadata[key] = value
	}
	left := slices.DeleteFunc(resource.Finalizers(r), func(f string) bool { return f == task.Finalizer })
	next.Metadata[resource.FinalizersKey] = strings.Join(left, " ")
	_, err := env.Client.Write(ctx, &pb.WriteRequest{Resource: next})
	return resource.FromStatus(err)
}

// driverWork returns the driver of a task and what the driver needs, without the
// backend.
func (d *Daemon) driverWork(ctx context.Context, name string, t *pb.Task) (*driver.Work, driver.Driver, error) {
	drv := d.cfg.Drivers[t.Driver]
	if drv == nil {
		return nil, nil, fmt.Errorf("this daemon has no driver %q", t.Driver)
	}
	w := &driver.Work{Name: name, Task: t, Dir: filepath.Join(d.cfg.Dir, name), Required: d.cfg.Required}
	if dir := t.GetTerraform().GetWorkingDir(); dir != "" {
		w.Dir = dir
	}
	if wanted := t.GetTerraform().GetProviders(); len(wanted) > 0 {
		if d.cfg.Providers == nil {
			return nil, nil, fmt.Errorf("provider %q is not configured in this daemon", wanted[0])
		}
		var err error
		if w.Providers, err = d.cfg.Providers(ctx, t); err != nil {
			return nil, nil, err
		}
	}
	return w, drv, nil
}

// definition returns the digest of a task and of what this daemon adds to it.
func (d *Daemon) definition(ctx context.Context, name string, t *pb.Task) (string, error) {
	w, drv, err := d.driverWork(ctx, name, t)
	if err != nil {
		return "", err
	}
	module, err := drv.Digest(ctx, w)
	if err != nil {
		return "", err
	}
	providers, err := json.Marshal(w.Providers)
	if err != nil {
		return "", err
	}
	// The digest is stored in the servers. Without the key, a reader cannot test
	// guesses of the secrets of a provider with it.
	mac := hmac.New(sha256.New, d.cfg.Key)
	mac.Write(providers)
	return definitionOf(t, module, hex.EncodeToString(mac.Sum(nil))), nil
}

// writeRun writes a run. The run is for people: a failure is only logged.
func (d *Daemon) writeRun(ctx context.Context, r *pb.Resource, id string, record *pb.TaskRun) (written bool) {
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	res, err := resource.NewNamed(task.RunType, record.Task+"."+id, task.CheckPartName, record)
	if err == nil {
		res.Owner, res.Id.Uid, res.Generation = r.GetId(), "", ""
		_, err = d.cfg.Resources.Write(ctx, &pb.WriteRequest{Resource: res})
	}
	if err != nil {
		d.cfg.Logger.Warn("cannot store a run", "task", record.Task, "run", id, "err", resource.FromStatus(err))
	}
	return err == nil
}

// prune deletes runs that are not kept any more.
func (d *Daemon) prune(name string, ids []string) {
	ctx, cancel := context.WithTimeout(d.storeCtx, callTimeout)
	defer cancel()
	for _, id := range ids {
		if _, err := d.cfg.Resources.Delete(ctx, &pb.DeleteRequest{Id: resource.ID(task.RunType, name+"."+id)}); err != nil {
			d.cfg.Logger.Debug("cannot delete an old run", "task", name, "run", id, "err", err)
		}
	}
}
