// SPDX-License-Identifier: MPL-2.0

package load

import "time"

// task is an activity with a schedule (an open loop). It does not wait until
// earlier actions have completed.
type task interface {
	// tick does all that is due at now, and returns the time of its next call.
	tick(now time.Time) time.Time
}

// pace starts to run tasks and stops all earlier tasks.
func (c *client) pace(tasks ...task) {
	c.onTimer = func(now time.Time) {
		next := now.Add(time.Second)
		for _, t := range tasks {
			if at := t.tick(now); at.Before(next) {
				next = at
			}
		}
		c.wakeIn(time.Until(next))
	}
	c.wakeIn(1)
}

// rateTask calls do at a constant rate, up to a number of times.
type rateTask struct {
	next   time.Time
	period time.Duration
	left   int // remaining calls; negative: no limit
	do     func(due time.Time)
}

func newRateTask(rate, times int, do func(due time.Time)) *rateTask {
	return &rateTask{next: time.Now(), period: time.Second / time.Duration(rate), left: times, do: do}
}

func (p *rateTask) tick(now time.Time) time.Time {
	for p.left != 0 && !p.next.After(now) {
		p.do(p.next)
		p.next = p.next.Add(p.period)
		p.left--
	}
	if p.left == 0 {
		return now.Add(time.Hour)
	}
	return p.next
}
