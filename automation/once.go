// SPDX-License-Identifier: MPL-2.0

package automation

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"

	"github.com/wanfed/wanfed/api/pb"
)

// onceResults has the results of tasks with Config.Once.
type onceResults struct {
	done chan struct{} // closed when all expected tasks have a result

	mu       sync.Mutex
	complete bool     // done is closed
	expected []string // nil: not known yet
	results  map[string]error
}

// Expect sets the tasks for which Run waits with Config.Once. names is not nil.
func (d *Daemon) Expect(names []string) {
	if !d.cfg.Once {
		return
	}
	o := &d.once
	o.mu.Lock()
	defer o.mu.Unlock()
	o.expected = names
	o.checkLocked()
}

// finish records that a task has run, or has nothing to do.
func (o *onceResults) finish(name string, err error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.results[name] = err
	o.checkLocked()
}

func (o *onceResults) checkLocked() {
	for _, name := range o.expected {
		if _, ok := o.results[name]; !ok {
			return
		}
	}
	if o.expected != nil && !o.complete {
		o.complete = true
		close(o.done)
	}
}

// err returns the errors of all tasks, in the order of their names.
func (o *onceResults) err() error {
	o.mu.Lock()
	defer o.mu.Unlock()
	var errs []error
	for _, name := range slices.Sorted(maps.Keys(o.results)) {
		if err := o.results[name]; err != nil {
			errs = append(errs, fmt.Errorf("task %s: %w", name, err))
		}
	}
	return errors.Join(errs...)
}

// onceError returns the outcome of a task that has nothing to do now.
func (d *Daemon) onceError(st *pb.TaskState, dec decision) error {
	switch {
	case dec.held:
		return errors.New("the guard holds back the run: approve it with wanfed task approve")
	case st.Failures > 0:
		return errors.New("the last run failed; see wanfed task history")
	}
	return nil
}
