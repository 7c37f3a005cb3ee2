// SPDX-License-Identifier: MPL-2.0

package automation

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"slices"
	"sync"
	"time"

	"google.golang.org/protobuf/proto"

	"github.com/wanfed/wanfed/api/pb"
	"github.com/wanfed/wanfed/automation/input"
	"github.com/wanfed/wanfed/automation/task"
	"github.com/wanfed/wanfed/automation/view"
)

// work is what a daemon keeps in memory about a task. Only the reconciler of the
// task uses it, except for the fields below mu.
type work struct {
	name string
	// state is the last known state of the task, read while the cache had
	// stateVersion. Nil: unknown.
	state        *pb.TaskState
	stateVersion string
	// keys has the objects of the conditions that have the digest keysTrigger.
	// They are known only for changes that this process has handled.
	keys        []map[string]string
	keysTrigger string
	// destroyed reports that the infrastructure was destroyed.
	destroyed bool
	// recovered reports that runs of an earlier process were looked for.
	recovered bool
	// recoverErr is the error of the last attempt to do so. The next attempt is
	// made after recoverAfter.
	recoverErr   error
	recoverAfter time.Time
	// seen are the digests of the last reconcile.
	seen                    digests
	firstChange, lastChange time.Time
	behindSince             time.Time

	mu sync.Mutex
	// views has the open views of the conditions, then of the inputs of query.
	views       []*view.View
	query       *pb.Task
	stopWatches context.CancelFunc
	active      *activeRun // nil: none
	reported    reported   // about the age of the data
}

// activeRun is a run that waits for its slot or executes.
type activeRun struct {
	cancel  context.CancelFunc
	started bool // it has its slot
}

// values is the data of a task at one moment.
type values struct {
	inputs input.Set
	// trigger is the digest of what starts runs.
	trigger string
	// keys has the digest of each object, for each condition.
	keys []map[string]string
	// indexes has the index of the data of each condition and input.
	indexes []uint64
	// age is that of the oldest data.
	age staleness
}

// empty reports that the conditions have no data.
func (v values) empty() bool {
	return !slices.ContainsFunc(v.keys, func(keys map[string]string) bool { return len(keys) > 0 })
}

// changes returns the names of objects whose change since before starts a run.
func (v values) changes(conditions []*pb.TaskQuery, before []map[string]string) (names []string) {
	for i, q := range conditions {
		names = append(names, view.Changes(q, before[i], v.keys[i])...)
	}
	return names
}

// values returns the present data of the open views. ok is false if a view has
// never been complete; missing then describes it.
func (w *work) values() (v values, missing string, ok bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.query == nil {
		return values{}, "no data was requested yet", false
	}
	v = values{inputs: input.Set{}, keys: make([]map[string]string, len(w.query.Conditions))}
	h := sha256.New()
	for i, q := range slices.Concat(w.query.Conditions, w.query.Inputs) {
		v.indexes = append(v.indexes, 0)
		if q.Kind == task.KindSchedule {
			continue
		}
		data, ok := w.views[i].Value()
		if !ok {
			missing = fmt.Sprintf("no data of %s yet", describe(q))
			if data.Err != nil {
				missing += ": " + data.Err.Error()
			}
			return values{}, missing, false
		}
		v.indexes[i] = data.Index
		if !data.Connected {
			v.age.add(data.Since, data.Err)
		}
		if name := task.Variable(q.Kind); !q.TriggerOnly {
			if other, ok := v.inputs[name]; ok { // several queries of services define one variable
				united, err := input.Unite(other, data.JSON)
				if err != nil {
					return values{}, err.Error(), false
				}
				data.JSON = united
			}
			v.inputs[name] = data.JSON
		}
		if i < len(w.query.Conditions) {
			fmt.Fprintf(h, "%d\x00%s\x00", i, data.Trigger)
			v.keys[i] = data.Keys
		}
	}
	if _, ok := v.inputs["services"]; !ok && w.query.Driver == task.DriverTerraform {
		v.inputs["services"] = []byte("{}") // every module of CTS declares the variable
	}
	v.trigger = hex.EncodeToString(h.Sum(nil))
	return v, "", true
}

// isBehind reports whether data is older than that of the last run. The indexes
// of a task with other conditions or inputs cannot be compared.
func (v values) isBehind(st *pb.TaskState) bool {
	if len(v.indexes) != len(st.AppliedIndexes) {
		return false
	}
	for i, index := range v.indexes {
		if index < st.AppliedIndexes[i] {
			return true
		}
	}
	return false
}

// changes returns the names of objects whose change since the last run starts a
// run. known is false if the objects at the last run are not known.
func (w *work) changes(t *pb.Task, v values) (names []string, known bool) {
	if len(w.keys) != len(v.keys) || w.state.AppliedTrigger != w.keysTrigger {
		return nil, false
	}
	return v.changes(t.Conditions, w.keys), true
}

// describe names the data of a query in messages.
func describe(q *pb.TaskQuery) string {
	if q.Datacenter != "" {
		return q.Kind + " in " + q.Datacenter
	}
	return q.Kind
}

// definitionOf returns the digest of the parts of a task that a run depends on,
// besides its inputs. extra has the digests of module and providers.
func definitionOf(t *pb.Task, extra ...string) string {
	d := &pb.Task{Driver: t.Driver, Terraform: t.Terraform, Exec: t.Exec, Variables: t.Variables}
	b, err := proto.MarshalOptions{Deterministic: true}.Marshal(d)
	if err != nil {
		panic(err) // a decoded message can be encoded
	}
	h := sha256.New()
	h.Write(b)
	for _, s := range extra {
		fmt.Fprintf(h, "\x00%s", s)
	}
	return hex.EncodeToString(h.Sum(nil))
}

// sameQueries reports whether two tasks have equal conditions and inputs.
func sameQueries(a, b *pb.Task) bool {
	equal := func(x, y *pb.TaskQuery) bool { return proto.Equal(x, y) }
	return a != nil && b != nil && slices.EqualFunc(a.Conditions, b.Conditions, equal) &&
		slices.EqualFunc(a.Inputs, b.Inputs, equal)
}

// openViews opens the views of a task and watches them, unless they are open.
func (d *Daemon) openViews(w *work, t *pb.Task) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	if sameQueries(w.query, t) {
		return nil
	}
	if err := w.openViewsLocked(d.cfg.Views, t); err != nil {
		return err
	}
	ctx, cancel := context.WithCancel(d.runCtx)
	w.stopWatches = cancel
	for _, v := range w.views {
		if v != nil {
			d.runs.Go(func() { d.watch(ctx, w.name, v) })
		}
	}
	return nil
}

// openViewsLocked replaces the views of w by those of t.
func (w *work) openViewsLocked(views *view.Views, t *pb.Task) error {
	old := work{views: w.views, stopWatches: w.stopWatches}
	defer old.closeViewsLocked() // later, so that streams that both need stay open
	w.views, w.query, w.stopWatches = nil, t, nil
	for _, q := range slices.Concat(t.Conditions, t.Inputs) {
		var v *view.View
		if q.Kind != task.KindSchedule {
			var err error
			if v, err = views.Open(q); err != nil {
				w.closeViewsLocked()
				return fmt.Errorf("%s: %w", describe(q), err)
			}
		}
		w.views = append(w.views, v)
	}
	return nil
}

// watch reconciles a task whenever the value of a view changes.
func (d *Daemon) watch(ctx context.Context, name string, v *view.View) {
	for {
		changed := v.Changed()
		d.notify(name)
		select {
		case <-changed:
		case <-d.stopping:
			return
		case <-ctx.Done():
			return
		}
	}
}

func (w *work) closeViews() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.closeViewsLocked()
}

func (w *work) closeViewsLocked() {
	if w.stopWatches != nil {
		w.stopWatches()
	}
	for _, v := range w.views {
		if v != nil {
			v.Close()
		}
	}
	w.views, w.query, w.stopWatches = nil, nil, nil
}

// isActive reports whether a run waits or executes.
func (w *work) isActive() bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.active != nil
}

// hasViews reports whether the views of the task are open.
func (w *work) hasViews() bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.query != nil
}

// cancelWaiting cancels a run that waits for its slot.
func (w *work) cancelWaiting() {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.active != nil && !w.active.started {
		w.active.cancel()
	}
}
