// SPDX-License-Identifier: MPL-2.0

package load

import "time"

// task is something that is done at times, whether or not what it began before has ended (an open loop).
type task interface {
	// tick does what was due until now and returns when it is to be called next.
	tick(now time.Time) time.Time
}

// pace does tasks from now on, instead of those that were paced before.
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

// rateTask does something rate times a second, up to a number of times.
type rateTask struct {
	next  time.Time
	every time.Duration
	left  int // negative: no end
	do    func(due time.Time)
}

func newRateTask(rate, times int, do func(due time.Time)) *rateTask {
	return &rateTask{next: time.Now(), every: time.Second / time.Duration(rate), left: times, do: do}
}

func (p *rateTask) tick(now time.Time) time.Time {
	for p.left != 0 && !p.next.After(now) {
		p.do(p.next)
		p.next = p.next.Add(p.every)
		p.left--
	}
	if p.left == 0 {
		return now.Add(time.Hour)
	}
	return p.next
}
