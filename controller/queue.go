// SPDX-License-Identifier: MPL-2.0

package controller

import (
	"sync"
	"time"

	"github.com/wanfed/wanfed/api/pb"
	"github.com/wanfed/wanfed/internal/backoff"
)

// class is the priority of a queued id.
type class int

const (
	idle       class = iota // not queued
	background              // added by a start or a resync
	foreground              // added by a change
)

// backgroundShare is the number of reconciles of which one is of class
// background while ids of both classes wait.
const backgroundShare = 8

// queue holds the ids to reconcile, each once. Its size is bounded by the
// number of ids.
type queue struct {
	retry Retry

	mu      sync.Mutex
	wake    *sync.Cond // one signal for each item that becomes ready
	closed  bool
	items   map[key]*item           // items that are queued, delayed or running
	ready   [foreground + 1][]*item // FIFO per class; an item whose class differs has moved to another list
	depth   int                     // queued items
	running map[*item]time.Time     // items of workers, with the start
	taken   int                     // number of get calls that returned an item
	paidTo  time.Time               // time up to which retries have used the rate limit
}

// item is one id. The mutex of the queue guards its fields.
type item struct {
	id       *pb.ID
	key      key
	class    class     // of the list that has the item; idle if none has it
	added    time.Time // when the item became ready
	busy     bool      // a worker has the item
	again    class     // class of the adds while busy
	failures int       // consecutive
	timer    *time.Timer
}

func newQueue(r Retry) *queue {
	q := &queue{retry: r, items: make(map[key]*item), running: make(map[*item]time.Time)}
	q.wake = sync.NewCond(&q.mu)
	return q
}

// add queues ids, unless they are queued already. No worker takes one of them
// before all are added, so an id that appears twice is reconciled once.
func (q *queue) add(c class, ids ...*pb.ID) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.closed {
		return
	}
	for _, id := range ids {
		k := keyOf(id)
		it := q.items[k]
		if it == nil {
			it = &item{id: &pb.ID{Name: id.GetName(), Type: id.GetType(), Tenancy: id.GetTenancy()}, key: k}
			q.items[k] = it
		}
		if it.busy {
			it.again = max(it.again, c)
		} else {
			q.pushLocked(it, c)
		}
	}
}

// pushLocked makes an item ready, or raises its class.
func (q *queue) pushLocked(it *item, c class) {
	if it.class >= c {
		return
	}
	if it.class == idle {
		q.depth++
		it.added = time.Now()
	}
	it.class = c
	q.ready[c] = append(q.ready[c], it)
	q.wake.Signal()
}

// get blocks until an item is ready, and returns it with the time that it
// waited. The caller calls done afterwards. get returns nil when the queue is
// closed.
func (q *queue) get() (*item, time.Duration) {
	q.mu.Lock()
	defer q.mu.Unlock()
	for !q.closed {
		if q.depth == 0 {
			q.wake.Wait()
			continue
		}
		it := q.popLocked()
		now := time.Now()
		q.depth--
		q.taken++
		it.class, it.busy = idle, true
		q.running[it] = now
		return it, now.Sub(it.added)
	}
	return nil, 0
}

// popLocked removes the next item. At least one item must be ready.
func (q *queue) popLocked() *item {
	order := [2]class{foreground, background}
	if q.taken%backgroundShare == backgroundShare-1 {
		order = [2]class{background, foreground}
	}
	for _, c := range order {
		for len(q.ready[c]) > 0 {
			it := q.ready[c][0]
			q.ready[c][0] = nil
			q.ready[c] = q.ready[c][1:]
			if it.class == c {
				return it
			}
		}
	}
	panic("controller: no item is ready, but depth is not 0")
}

// done ends the work on an item, and queues it again as the outcome requires.
// It returns the delay of a retry.
func (q *queue) done(it *item, res Result, err error) (retry time.Duration) {
	q.mu.Lock()
	defer q.mu.Unlock()
	delete(q.running, it)
	if q.closed {
		return 0
	}
	it.busy = false
	stop(it)
	switch {
	case err != nil:
		it.failures++
		retry = max(backoff.Delay(it.failures, q.retry.Min, q.retry.Max), q.reserveLocked())
		q.delayLocked(it, retry)
	case res.RequeueNow:
		it.failures, it.again = 0, foreground
	default:
		it.failures = 0
		if res.RequeueAfter > 0 {
			q.delayLocked(it, res.RequeueAfter)
		}
	}
	if again := it.again; again != idle {
		it.again = idle
		q.pushLocked(it, again)
	}
	if it.class == idle && it.timer == nil {
		delete(q.items, it.key)
	}
	return retry
}

// delayLocked queues an item after d.
func (q *queue) delayLocked(it *item, d time.Duration) {
	var t *time.Timer
	t = time.AfterFunc(d, func() {
		q.mu.Lock()
		defer q.mu.Unlock()
		if it.timer != t || q.closed { // stopped too late
			return
		}
		it.timer = nil
		if it.busy {
			it.again = foreground
			return
		}
		q.pushLocked(it, foreground)
	})
	it.timer = t
}

func stop(it *item) {
	if it.timer != nil {
		it.timer.Stop()
		it.timer = nil
	}
}

// reserveLocked returns the delay of the next retry by the rate limit.
func (q *queue) reserveLocked() time.Duration {
	if q.retry.PerSecond < 0 {
		return 0
	}
	interval := time.Duration(float64(time.Second) / q.retry.PerSecond)
	now := time.Now()
	if full := now.Add(-time.Duration(q.retry.Burst) * interval); q.paidTo.Before(full) {
		q.paidTo = full
	}
	q.paidTo = q.paidTo.Add(interval)
	return max(0, q.paidTo.Sub(now))
}

// close makes get return nil, and stops all timers.
func (q *queue) close() {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.closed = true
	for _, it := range q.items {
		stop(it)
	}
	q.items, q.ready, q.depth = nil, [foreground + 1][]*item{}, 0
	q.wake.Broadcast()
}

// load returns the number of queued items, the sum of the time that workers
// have spent on running items, and the longest of these times.
func (q *queue) load() (depth int, unfinished, longest time.Duration) {
	q.mu.Lock()
	defer q.mu.Unlock()
	for _, since := range q.running {
		d := time.Since(since)
		unfinished += d
		longest = max(longest, d)
	}
	return q.depth, unfinished, longest
}
