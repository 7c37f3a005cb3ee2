// SPDX-License-Identifier: MPL-2.0

package automation

import (
	"cmp"
	"context"
	"os"
	"path/filepath"
	"sync"
	"time"

	"github.com/wanfed/wanfed/automation/driver"
	"github.com/wanfed/wanfed/automation/process"
	"github.com/wanfed/wanfed/automation/task"
)

// programs are the machines of all fake drivers.
type programs struct {
	mu sync.Mutex
	// duration of a run; fail is the error of a run, or nil.
	duration time.Duration
	slow     time.Duration // duration of each tenth run; 0: duration
	started  int
	fail     func(task string) error
	changes  driver.Changes
	// recoverErr is the error of Recover, and recovers the number of its calls.
	recoverErr error
	recovers   int
	// left is the path of the state that the run leftBy could not store.
	left, leftBy string
	log          []*program
	alive        map[string]*program // by task
	last         map[string]*program // by directory
	overlaps     []string            // tasks with two programs at one time
}

// program is one run of a fake driver.
type program struct {
	id, task, daemon, inputs string
	services                 string // the variable services
	mode                     driver.Mode
	start, end               time.Time
	err                      error
	until                    time.Time     // it ends then, if its daemon does not extend the time
	changed                  chan struct{} // of size 1
	ended                    chan struct{}
}

// runs returns the runs of a task that have ended.
func (p *programs) runs(name string) (out []*program) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, r := range p.log {
		if r.task == name {
			out = append(out, r)
		}
	}
	return out
}

type fakeDriver struct {
	p *programs
	n *node
}

func (f *fakeDriver) Version(context.Context) (string, error)              { return "fake 1", nil }
func (f *fakeDriver) Check(context.Context, *driver.Work) error            { return nil }
func (f *fakeDriver) Digest(context.Context, *driver.Work) (string, error) { return "", nil }

func (f *fakeDriver) Recover(ctx context.Context, w *driver.Work) (*driver.Recovered, error) {
	f.p.mu.Lock()
	f.p.recovers++
	err, last, left, leftBy := f.p.recoverErr, f.p.last[w.Dir], f.p.left, f.p.leftBy
	f.p.mu.Unlock()
	if text, err := os.ReadFile(left); err == nil && filepath.Dir(left) == w.Dir {
		return &driver.Recovered{ID: cmp.Or(leftBy, last.id), Err: driver.ErrInterrupted, State: text, StatePath: left}, nil
	}
	if err != nil || last == nil {
		return nil, err
	}
	return &driver.Recovered{ID: last.id, Err: f.wait(ctx, last, w)}, nil
}

func (f *fakeDriver) Run(ctx context.Context, w *driver.Work, r driver.Request) (driver.Result, error) {
	f.p.mu.Lock()
	duration, fail, changes := f.p.duration, f.p.fail, f.p.changes
	if f.p.started++; f.p.slow != 0 && f.p.started%10 == 0 {
		duration = f.p.slow
	}
	f.p.mu.Unlock()
	if r.Guard != nil {
		if err := r.Guard(changes); err != nil {
			return driver.Result{Changes: changes}, err
		}
	}
	run := &program{id: r.ID, task: w.Name, daemon: f.n.id, inputs: string(r.Inputs["consul_kv"]), mode: r.Mode,
		start: time.Now(), services: string(r.Inputs["services"]), ended: make(chan struct{}), changed: make(chan struct{}, 1)}
	run.end = run.start.Add(duration)
	f.p.mu.Lock()
	if other := f.p.alive[w.Name]; other != nil {
		f.p.overlaps = append(f.p.overlaps, w.Name+": "+other.daemon+" and "+run.daemon)
	}
	f.p.alive[w.Name], f.p.last[w.Dir] = run, run
	f.p.mu.Unlock()
	go f.p.execute(run, fail)
	return driver.Result{Changes: changes, Log: "done"}, f.wait(ctx, run, w)
}

// execute is the process of a run.
func (p *programs) execute(run *program, fail func(string) error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for {
		limit := run.end
		if !run.until.IsZero() && run.until.Before(limit) {
			limit = run.until
		}
		left := time.Until(limit)
		if run.err != nil || left <= 0 {
			break
		}
		p.mu.Unlock()
		select {
		case <-time.After(left):
		case <-run.changed:
		}
		p.mu.Lock()
	}
	if now := time.Now(); now.Before(run.end) {
		run.end, run.err = now, driver.ErrInterrupted
	} else if fail != nil {
		run.err = fail(run.task)
	}
	p.log = append(p.log, run)
	delete(p.alive, run.task)
	close(run.ended)
}

// set changes a program.
func (p *programs) set(run *program, until time.Time, err error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.alive[run.task] != run {
		return // it has ended
	}
	if run.until = until; run.err == nil {
		run.err = err
	}
	select {
	case run.changed <- struct{}{}:
	default:
	}
}

// wait returns the error of a program when it has ended. If ctx ends because the
// daemon is killed, the program continues while its guard permits.
func (f *fakeDriver) wait(ctx context.Context, run *program, w *driver.Work) error {
	if dead, _ := f.n.deadUntil(w.Dir); dead {
		return driver.ErrInterrupted
	}
	f.p.set(run, time.Time{}, nil)
	select {
	case <-run.ended:
		return run.err
	case <-ctx.Done():
	}
	if dead, until := f.n.deadUntil(w.Dir); dead {
		f.p.set(run, until.Add(process.StopTime(task.Grace(w.Task))), nil)
		return driver.ErrInterrupted
	}
	if paused := f.n.link.pausing(); paused != nil { // the guard ends the program
		_, until := f.n.deadUntil(w.Dir)
		f.p.set(run, until.Add(process.StopTime(task.Grace(w.Task))), nil)
		<-paused
	}
	f.p.set(run, time.Time{}, driver.ErrInterrupted)
	<-run.ended
	return run.err
}
