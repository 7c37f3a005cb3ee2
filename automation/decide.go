// SPDX-License-Identifier: MPL-2.0

package automation

import (
	"time"

	"github.com/hashicorp/cronexpr"

	"github.com/wanfed/wanfed/api/pb"
	"github.com/wanfed/wanfed/automation/driver"
	"github.com/wanfed/wanfed/automation/task"
)

// Values of TaskRun.trigger: why a run was started.
const (
	byStart    = "start"    // the task has never run with success
	byChange   = "change"   // the data of a condition, or the task, has changed
	bySchedule = "schedule" // the time of a schedule has come, and an input has changed
	byRequest  = "request"  // an operator requested the run
	byRetry    = "retry"    // the last run failed
	byDrift    = "drift"    // a drift check is due
)

// digests identify what a run would use.
type digests struct {
	trigger    string // data of the conditions
	inputs     string // values of all variables
	definition string // the task itself, its module and its providers
}

// maxBehind bounds the time for which a daemon waits for data that is not older
// than that of the last run. It is exceeded if a datacenter was built again, so
// that its indexes are lower.
const maxBehind = 30 * time.Second

// situation has everything on which the decision about a task depends.
type situation struct {
	// now is the time, for durations in this process. wall is the time of the
	// clock of this machine, for times that any daemon has stored. The clock may
	// jump.
	now, wall time.Time

	task  *pb.Task
	state *pb.TaskState
	// ready reports that every condition and input has data. Without it, now
	// is unknown what the task should do, and it does nothing.
	ready   bool
	digests digests
	// firstChange and lastChange are the times of the first and the last change
	// of digests since the last run. Zero: no change.
	firstChange, lastChange time.Time
	// buffer applies to the task.
	buffer *pb.TaskBuffer
	// behindSince is the time since which the data has been older than that of the
	// last run, for example because the server of this daemon lags. Zero: it is
	// not older.
	behindSince time.Time
	// request is the mode of a run that an operator requested. Empty: none.
	request driver.Mode
}

// decision is what to do with a task. If reason is "", there is nothing to do
// before after has passed, or before the next change if after is 0.
type decision struct {
	reason string
	mode   driver.Mode
	after  time.Duration
	// held reports that the guard holds back the run until an operator
	// approves it.
	held bool
}

// decide returns what to do with a task that is enabled, claimed by this daemon
// and not running. It depends only on the situation.
func decide(s situation) decision {
	if !s.ready {
		return decision{}
	}
	if wait := s.behindSince.Add(maxBehind).Sub(s.now); !s.behindSince.IsZero() && wait > 0 {
		return decision{after: wait}
	}
	if s.request != "" {
		return decision{reason: byRequest, mode: s.request}
	}
	st := s.state
	if st.Refused != "" && st.Refused == s.digests.inputs+s.digests.definition && st.Approved != st.Refused {
		return decision{held: true}
	}
	if st.Failures > 0 && st.Failed == s.digests.inputs+s.digests.definition {
		// A longer wait than that with jitter comes from another clock.
		if wait := st.RetryAt.AsTime().Sub(s.wall); wait > 0 && wait <= maxRetry*5/4 {
			return decision{after: wait}
		}
		return decision{reason: byRetry, mode: driver.Apply}
	}
	if st.AppliedAt == nil {
		return decision{reason: byStart, mode: driver.Apply}
	}
	var next decision
	if st.AppliedTrigger != s.digests.trigger || st.AppliedTask != s.digests.definition {
		wait := bufferDelay(s)
		if wait <= 0 {
			return decision{reason: byChange, mode: driver.Apply}
		}
		next.after = wait
	}
	for _, q := range s.task.Conditions {
		if q.Kind != task.KindSchedule {
			continue
		}
		wait, ok := untilFire(q.Cron, latest(st.ScheduledAt.AsTime(), st.AppliedAt.AsTime()), s.wall)
		switch {
		case !ok:
		case wait > 0:
			next.after = shorter(next.after, wait)
		default:
			return decision{reason: bySchedule, mode: driver.Apply}
		}
	}
	if every := s.task.DriftCheck.AsDuration(); every > 0 {
		wait := latest(st.DriftCheckedAt.AsTime(), st.AppliedAt.AsTime()).Add(every).Sub(s.wall)
		if wait <= 0 {
			return decision{reason: byDrift, mode: driver.Plan}
		}
		next.after = shorter(next.after, wait)
	}
	return next
}

// unchanged reports whether a scheduled run has nothing to do.
func unchanged(st *pb.TaskState, d digests) bool {
	return st.AppliedInputs == d.inputs && st.AppliedTask == d.definition
}

// bufferDelay returns the rest of the delay of the buffer.
func bufferDelay(s situation) time.Duration {
	b := s.buffer
	if b == nil || b.Disabled || s.lastChange.IsZero() {
		return 0
	}
	due := s.lastChange.Add(b.Min.AsDuration())
	if limit := s.firstChange.Add(b.Max.AsDuration()); limit.Before(due) {
		due = limit
	}
	return due.Sub(s.now)
}

// untilFire returns the time until the first moment of a schedule after last.
// It is not positive if the moment has passed. ok is false if there is none.
func untilFire(cron string, last, now time.Time) (wait time.Duration, ok bool) {
	expr, err := cronexpr.Parse(cron)
	if err != nil {
		return 0, false // package task has checked it
	}
	at := expr.Next(last.Local())
	return at.Sub(now), !at.IsZero()
}

func latest(a, b time.Time) time.Time {
	if a.After(b) {
		return a
	}
	return b
}

// shorter returns the shorter of two waits, where 0 is none.
func shorter(a, b time.Duration) time.Duration {
	if a == 0 {
		return b
	}
	return min(a, b)
}
