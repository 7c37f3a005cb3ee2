// SPDX-License-Identifier: MPL-2.0

package automation

import (
	"fmt"
	"time"

	"github.com/wanfed/wanfed/api/pb"
)

const (
	// oldAfter is the age from which the condition Ready of a task reports old
	// data. Shorter interruptions, as the restart of a server, are not reported.
	oldAfter = 10 * time.Second
	// ageInterval is the time between two looks for old data.
	ageInterval = 5 * time.Second
)

// staleness is what Ready reports about the data of a task.
type staleness struct {
	since time.Time // time of the last complete data. Zero: the data is current
	err   error     // why the data is old or missing; may be nil
}

// isOld reports whether the data is old enough to be reported.
func (s staleness) isOld(now time.Time) bool { return !s.since.IsZero() && now.Sub(s.since) > oldAfter }

// add adds the state of a view. The oldest data counts.
func (s *staleness) add(since time.Time, err error) {
	if s.since.IsZero() || since.Before(s.since) {
		s.since, s.err = since, err
	}
}

// condition returns the condition Ready for old data. It has a time and no
// duration, so that it does not change while the data gets older.
func (s staleness) condition() *pb.Condition {
	message := "the data is that of " + s.since.UTC().Format(time.RFC3339) + ", because a source does not respond"
	if s.err != nil {
		message += fmt.Sprintf(": %.300v", s.err)
	}
	return condition("Ready", "OldData", message)
}

// reported is what the last reconcile of a task has found.
type reported struct{ old, missing, failed bool }

// look returns what a reconcile would report.
func (w *work) look(now time.Time) (r reported) {
	w.mu.Lock()
	defer w.mu.Unlock()
	var s staleness
	for _, v := range w.views {
		if v == nil { // a schedule
			continue
		}
		data, ok := v.Value()
		if !ok {
			r.missing, r.failed = true, r.failed || data.Err != nil
		} else if !data.Connected {
			s.add(data.Since, data.Err)
		}
	}
	r.old = !r.missing && s.isOld(now)
	return r
}

// notifyAge reconciles the tasks whose data has become old, or current again, or
// whose missing data has got a reason. A change of the connection alone does not
// reconcile a task, because many tasks have the same one.
func (d *Daemon) notifyAge(now time.Time) {
	d.mu.Lock()
	works := make([]*work, 0, len(d.works))
	for _, w := range d.works {
		works = append(works, w)
	}
	d.mu.Unlock()
	for _, w := range works {
		if r := w.look(now); w.setReported(r) {
			d.notify(w.name)
		}
	}
}

// setReported reports whether r differs from what it was.
func (w *work) setReported(r reported) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	changed := w.reported != r
	w.reported = r
	return changed
}
