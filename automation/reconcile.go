// SPDX-License-Identifier: MPL-2.0

package automation

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/wanfed/wanfed/api/pb"
	"github.com/wanfed/wanfed/automation/driver"
	"github.com/wanfed/wanfed/automation/state"
	"github.com/wanfed/wanfed/automation/task"
	"github.com/wanfed/wanfed/controller"
	"github.com/wanfed/wanfed/lease"
	"github.com/wanfed/wanfed/resource"
)

// checkInterval is the time between two checks whether this daemon can run the
// tasks of its group.
const checkInterval = 5 * time.Minute

// tasksByLease finds a task by the name of its lease.
var tasksByLease = &controller.Index{Type: task.Type, Name: "lease", Keys: func(r *pb.Resource) []string {
	return []string{task.LeaseName(r.GetId().GetName())}
}}

// controller declares the reconciler of tasks.
func (d *Daemon) controller() controller.Controller {
	return controller.Controller{
		Name:    task.StatusKey,
		Managed: task.Type,
		Watches: []controller.Watch{
			{Type: task.StateType, Map: controller.MapSameName},
			{Type: task.InstanceType, Map: controller.MapAll},
			{Type: lease.Type, Map: mapLease},
		},
		Indexes: []*controller.Index{tasksByLease},
		Events: []controller.Source{controller.Events("data", d.changed,
			func(context.Context, *controller.Env, struct{}) ([]*pb.ID, error) { return d.takeNames(), nil })},
		Reconcile: d.reconcile,
		Placement: controller.EveryServer,
		Resync:    checkInterval,
		Workers:   64, // most of their time they wait for a server
		Retry:     controller.Retry{Min: 100 * time.Millisecond, Max: 30 * time.Second},
	}
}

// mapLease maps the lease of a task to the task, and the lease of a daemon to
// all tasks.
func mapLease(env *controller.Env, r *pb.Resource) ([]*pb.ID, error) {
	name := r.GetId().GetName()
	switch {
	case strings.HasPrefix(name, task.InstanceLeaseName("")):
		return controller.MapAll(env, r)
	case strings.HasPrefix(name, lease.SyncPrefix):
		tasks, err := env.Cache.Lookup(tasksByLease, name)
		ids := make([]*pb.ID, len(tasks))
		for i, t := range tasks {
			ids[i] = t.GetId()
		}
		return ids, err
	}
	return nil, nil
}

// workOf returns the work of a task.
func (d *Daemon) workOf(name string) *work {
	d.mu.Lock()
	defer d.mu.Unlock()
	w := d.works[name]
	if w == nil {
		w = &work{name: name}
		d.works[name] = w
	}
	return w
}

// reconcile brings one task forward. One goroutine at a time reconciles a task.
func (d *Daemon) reconcile(ctx context.Context, env *controller.Env, id *pb.ID) (controller.Result, error) {
	w := d.workOf(id.Name)
	r, err := env.Cache.Get(id)
	if errors.Is(err, resource.ErrNotFound) {
		return controller.Result{}, d.drop(ctx, w)
	}
	if err != nil {
		return controller.Result{}, err
	}
	t, err := resource.Decode[*pb.Task](r)
	if err != nil {
		return controller.Result{}, err
	}
	if t.Group != d.cfg.Group {
		return controller.Result{}, d.drop(ctx, w)
	}
	_, deleting := resource.Terminating(r)
	if !t.GetEnabled() && !deleting {
		w.cancelWaiting()
		d.once.finish(w.name, nil)
		err := env.WriteStatus(ctx, r, condition("Ready", "Disabled", "the task is disabled"))
		return controller.Result{}, errors.Join(err, d.letGo(ctx, w))
	}
	unfit := d.check(ctx, w.name, r, t)
	mine, err := d.isMine(env, w.name)
	if err != nil {
		return controller.Result{}, err
	}
	if !mine {
		return controller.Result{}, d.letGo(ctx, w)
	}
	if unfit != nil { // no daemon can run it, and this one reports why
		d.once.finish(w.name, unfit)
		return controller.Result{RequeueAfter: checkInterval}, env.WriteStatus(ctx, r,
			controller.Outcome("Compatible", "Checked", unfit), condition("Ready", "Incompatible", unfit.Error()))
	}
	token, err := d.claims.acquire(ctx, task.LeaseName(w.name))
	if err != nil || token == 0 {
		return controller.Result{RequeueAfter: d.cfg.Lease}, err // a change of the lease reconciles the task earlier
	}
	c := state.Claim{Task: w.name, Instance: d.cfg.ID, Epoch: token}
	if w.isActive() { // w belongs to the run, whose end reconciles the task
		return controller.Result{}, nil
	}
	if err := d.load(ctx, env, w, c); err != nil {
		return controller.Result{}, err
	}
	if wait := d.othersRun(w); wait > 0 {
		return controller.Result{RequeueAfter: wait}, env.WriteStatus(ctx, r, condition("Ready", "OtherDaemon",
			"a daemon that has lost the task may still run it: waiting for the end"))
	}
	if !w.recovered || w.state.Running != nil {
		if wait := time.Until(w.recoverAfter); w.recoverErr != nil && wait > 0 {
			return controller.Result{RequeueAfter: wait}, env.WriteStatus(ctx, r, controller.Outcome("Ready", "Recovery", w.recoverErr))
		}
		d.recover(w, r, t, c)
		return controller.Result{}, nil
	}
	if deleting {
		return controller.Result{}, d.finalize(ctx, env, w, r, t, c)
	}
	if err := d.openViews(w, t); err != nil { // check has accepted it
		return controller.Result{}, err
	}
	return d.advance(ctx, env, w, r, t, c)
}

// advance starts a run if one is due.
func (d *Daemon) advance(
	ctx context.Context, env *controller.Env, w *work, r *pb.Resource, t *pb.Task, c state.Claim,
) (controller.Result, error) {
	now := time.Now()
	v, missing, ready := w.values()
	s := situation{now: now, wall: d.clock(), task: t, state: w.state, ready: ready, buffer: d.buffer(t)}
	if ready {
		definition, err := d.definition(ctx, w.name, t)
		if err != nil {
			return controller.Result{}, errors.Join(err, env.WriteStatus(ctx, r, controller.Outcome("Ready", "Configuration", err)))
		}
		s.digests = digests{v.trigger, v.inputs.Digest(), definition}
		if !v.isBehind(w.state) {
			w.behindSince = time.Time{}
		} else if w.behindSince.IsZero() {
			w.behindSince = now
		}
		s.behindSince = w.behindSince
		if err := d.skipChanges(ctx, w, t, c, v); err != nil {
			return controller.Result{}, err
		}
		s.state = w.state
		w.observe(now, s.digests)
		s.firstChange, s.lastChange = w.firstChange, w.lastChange
	}
	request, mode := requestOf(r)
	if request != "" && request != w.state.Request {
		s.request = mode
	}
	dec := decide(s)
	ready1 := controller.Outcome("Ready", "Waiting", nil)
	switch {
	case !ready:
		ready1 = condition("Ready", "NoData", missing)
	case dec.held:
		ready1 = condition("Ready", "Refused", "the guard holds back a run: see wanfed task read, then wanfed task approve "+w.name)
	case v.age.isOld(now):
		ready1 = v.age.condition()
	default:
		d.reportKept(w.name, ready1)
	}
	if err := env.WriteStatus(ctx, r, ready1, controller.Outcome("Compatible", "Checked", nil), applied(w.state),
		drifted(w.state)); err != nil {
		return controller.Result{}, err
	}
	switch {
	case dec.reason == bySchedule && unchanged(w.state, s.digests):
		return controller.Result{RequeueNow: true}, d.update(ctx, w, c, func(st *pb.TaskState) {
			st.ScheduledAt = timestamppb.New(s.wall)
		})
	case dec.reason != "":
		if s.request == "" {
			request = resource.NewUID()
		}
		d.start(w, r, t, c, run{id: request, mode: dec.mode, reason: dec.reason})
	case ready:
		d.once.finish(w.name, d.onceError(w.state, dec))
	}
	return controller.Result{RequeueAfter: dec.after}, nil
}

// reportKept adds the states of a task that this daemon has kept to the message
// of ready. They do not hold back runs.
func (d *Daemon) reportKept(name string, ready *pb.Condition) {
	if d.cfg.Kept == nil {
		return
	}
	if paths := d.cfg.Kept(name); len(paths) > 0 {
		ready.Message = fmt.Sprintf("%d states of earlier runs are not stored: daemon %s has kept the last one in %s: compare it with "+
			"the stored state, then remove the file: see wanfed task state pull --help", len(paths), d.cfg.ID, slices.Max(paths))
	}
}

// skipChanges records changes of the conditions that do not start a run, so that
// they do not start one after a restart either.
func (d *Daemon) skipChanges(ctx context.Context, w *work, t *pb.Task, c state.Claim, v values) error {
	if w.state.AppliedTrigger == v.trigger || v.isBehind(w.state) {
		return nil
	}
	if names, known := w.changes(t, v); !known || len(names) > 0 {
		return nil
	}
	err := d.update(ctx, w, c, func(st *pb.TaskState) { st.AppliedTrigger = v.trigger })
	if err == nil {
		w.keys, w.keysTrigger = v.keys, v.trigger
	}
	return err
}

// observe records the times of changes of digests, for the buffer.
func (w *work) observe(now time.Time, seen digests) {
	if w.state.AppliedTrigger == seen.trigger && w.state.AppliedTask == seen.definition {
		w.firstChange, w.lastChange = time.Time{}, time.Time{}
	} else if w.lastChange.IsZero() || seen != w.seen {
		w.lastChange = now
		if w.firstChange.IsZero() {
			w.firstChange = now
		}
	}
	w.seen = seen
}

// buffer returns the buffer of a task.
func (d *Daemon) buffer(t *pb.Task) *pb.TaskBuffer {
	switch {
	case d.cfg.Once:
		return nil
	case t.Buffer != nil:
		return t.Buffer
	}
	return d.cfg.Buffer
}

// requestOf returns id and mode of the run that an operator requested, or "".
func requestOf(r *pb.Resource) (id string, mode driver.Mode) {
	id, text, _ := strings.Cut(r.GetMetadata()[task.RequestKey], " ")
	mode = driver.Mode(text)
	if !slices.Contains([]driver.Mode{driver.Plan, driver.Apply, driver.Destroy}, mode) {
		return "", ""
	}
	return id, mode
}

// load sets w.state to the acknowledged state, with the claim of this daemon.
func (d *Daemon) load(ctx context.Context, env *controller.Env, w *work, c state.Claim) error {
	version := ""
	cached, err := env.Cache.Get(task.StateID(w.name))
	if err == nil {
		version = cached.GetVersion()
	} else if !errors.Is(err, resource.ErrNotFound) {
		return err
	}
	if w.state != nil && w.stateVersion == version && w.state.Epoch == c.Epoch {
		return nil
	}
	st, err := d.cfg.States.Claim(ctx, c)
	if err != nil {
		return err
	}
	w.state, w.stateVersion = st, version
	return nil
}

// update changes the state of a task.
func (d *Daemon) update(ctx context.Context, w *work, c state.Claim, change func(*pb.TaskState)) error {
	st, err := d.cfg.States.Update(ctx, c, func(st *pb.TaskState) error {
		change(st)
		return nil
	})
	if err == nil {
		w.state = st
	}
	return err
}

// letGo closes what a daemon needs only for tasks that it runs. A run in
// progress continues with its claim.
func (d *Daemon) letGo(ctx context.Context, w *work) error {
	w.cancelWaiting()
	if w.isActive() {
		return nil
	}
	w.closeViews()
	w.state, w.recovered, w.recoverErr = nil, false, nil
	d.claims.release(ctx, task.LeaseName(w.name))
	return nil
}

// drop ends the work on a task that does not exist any more, or belongs to
// another group.
func (d *Daemon) drop(ctx context.Context, w *work) error {
	err := d.letGo(ctx, w)
	d.mu.Lock()
	defer d.mu.Unlock()
	if !w.isActive() {
		delete(d.works, w.name)
	}
	if _, ok := d.checks[w.name]; ok {
		delete(d.checks, w.name)
		d.publishLater()
	}
	return err
}

// condition returns a condition that is false.
func condition(typ, reason, message string) *pb.Condition {
	return &pb.Condition{Type: typ, State: pb.Condition_STATE_FALSE, Reason: reason, Message: message}
}

// applied returns the condition Applied.
func applied(st *pb.TaskState) *pb.Condition {
	switch {
	case st.Failures > 0:
		return condition("Applied", "Failed", fmt.Sprintf("%d failed runs since the last success; see wanfed task history", st.Failures))
	case st.AppliedAt == nil:
		return condition("Applied", "NeverRun", "")
	}
	return &pb.Condition{Type: "Applied", State: pb.Condition_STATE_TRUE, Reason: "Succeeded"}
}

// drifted returns the condition Drifted.
func drifted(st *pb.TaskState) *pb.Condition {
	switch st.Drift {
	case "found":
		return &pb.Condition{Type: "Drifted", State: pb.Condition_STATE_TRUE, Reason: "Found"}
	case "none":
		return &pb.Condition{Type: "Drifted", State: pb.Condition_STATE_FALSE, Reason: "None"}
	}
	return &pb.Condition{Type: "Drifted", Reason: "NotChecked"}
}
