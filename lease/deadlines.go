// SPDX-License-Identifier: MPL-2.0

package lease

import (
	"container/heap"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/wanfed/wanfed/api/pb"
	"github.com/wanfed/wanfed/internal/backoff"
	"github.com/wanfed/wanfed/internal/broadcast"
	"github.com/wanfed/wanfed/resource"
)

const (
	// confirmInterval is the minimum time between two confirmations of
	// leadership. It bounds their cost, and delays a renewal at most this long.
	confirmInterval = 100 * time.Millisecond
	// expireRetry is the time between a failed expiry and its retry.
	expireRetry = time.Second
	// maxBatch bounds the resources of one call of Expire.
	maxBatch = 128
	// maxExpiring bounds the calls of Expire at the same time.
	maxExpiring = 4
)

// DeadlinesConfig configures Deadlines. All fields are required.
type DeadlinesConfig struct {
	// Type is the type of the resources that expire.
	Type *pb.Type
	// Backend is the store of this server.
	Backend resource.Backend
	// Duration returns the time from a renewal of r to its expiry. 0: r does
	// not expire. It must not block.
	Duration func(r *pb.Resource) time.Duration
	// Expire ends up to 128 resources, by commits that expect their versions.
	// After an error, those that remain are passed to Expire again: one by one
	// if resource.Rejected(err), and otherwise a second later. Expire is called
	// by several goroutines.
	Expire func(ctx context.Context, rs []*pb.Resource) error
	// Confirm returns nil if this server has led at a time after the call. It
	// writes nothing.
	Confirm func(ctx context.Context) error
	Logger  *slog.Logger
}

// Deadlines keeps the deadlines of all resources of one type in the memory of
// the leader. A renewal moves a deadline and writes nothing. A new leader gives
// each resource its full duration. Any goroutine may call the methods.
type Deadlines struct {
	cfg     DeadlinesConfig
	changed broadcast.Broadcast // notifies expireDue of an earlier first deadline
	waiting chan struct{}       // has a token while next has waiters

	mu      sync.Mutex
	entries map[string]*deadline // by name; nil while Run does not run
	queue   deadlineQueue
	next    *confirmation // the confirmation that has not begun; nil: no renewal waits
}

// deadline is the state of one resource. Deadlines.mu guards it.
type deadline struct {
	name     string
	index    uint64 // ModifyIndex of the resource
	duration time.Duration
	at       time.Time
	queued   time.Time // place in the queue; a renewal moves only at, which is later
	expiring bool      // Expire was called; the resource is not in the queue
	position int       // in the queue
}

// confirmation is one confirmation of leadership.
type confirmation struct {
	done chan struct{} // closed when err is set
	err  error
}

// Renewal names a resource to renew.
type Renewal struct {
	Name string
	// Token is the required ModifyIndex of the resource. 0: any.
	Token uint64
}

// NewDeadlines returns Deadlines without entries. Run fills them.
func NewDeadlines(cfg DeadlinesConfig) (*Deadlines, error) {
	if cfg.Type == nil || cfg.Backend == nil || cfg.Duration == nil || cfg.Expire == nil || cfg.Confirm == nil ||
		cfg.Logger == nil {
		return nil, errors.New("lease: all fields of DeadlinesConfig are required")
	}
	return &Deadlines{cfg: cfg, waiting: make(chan struct{}, 1)}, nil
}

// Renew gives each resource its full duration from now. It returns the
// positions of the renewals whose resource does not exist, has expired or has
// another token. Renew blocks until a majority has confirmed this server as the
// leader after the call. A server that was stopped or cut off can therefore not
// renew a lease that a new leader may have let expire.
//
// Renew fails with resource.ErrNotLeader while Run does not run.
func (d *Deadlines) Renew(ctx context.Context, renewals ...Renewal) (lost []int, err error) {
	for i, r := range renewals {
		ok, err := d.renew(ctx, r)
		if err != nil {
			return nil, err
		}
		if !ok {
			lost = append(lost, i)
		}
	}
	return lost, d.confirm(ctx)
}

func (d *Deadlines) renew(ctx context.Context, r Renewal) (ok bool, err error) {
	known, ok, err := d.move(r)
	if known || err != nil {
		return ok, err
	}
	// The watch may not have delivered the resource yet.
	stored, err := d.cfg.Backend.Read(ctx, resource.Eventual, resource.ID(d.cfg.Type, r.Name))
	switch {
	case errors.Is(err, resource.ErrNotFound):
		return false, nil
	case err != nil:
		return false, err
	}
	d.Set(stored)
	_, ok, err = d.move(r)
	return ok, err
}

// move renews an entry. known is false if there is no entry with the token of
// r.
func (d *Deadlines) move(r Renewal) (known, ok bool, err error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.entries == nil {
		return false, false, resource.ErrNotLeader
	}
	e := d.entries[r.Name]
	switch {
	case e == nil, r.Token > e.index:
		return false, false, nil
	case e.expiring, r.Token != 0 && r.Token < e.index:
		return true, false, nil
	}
	e.at = time.Now().Add(e.duration)
	return true, true, nil
}

// Set loads a stored resource. A resource that is loaded already keeps its
// deadline, until another write changes it.
func (d *Deadlines) Set(r *pb.Resource) {
	name, duration := r.GetId().GetName(), d.cfg.Duration(r)
	d.mu.Lock()
	defer d.mu.Unlock()
	e := d.entries[name]
	if d.entries == nil || e != nil && e.index >= r.GetModifyIndex() {
		return
	}
	if duration <= 0 {
		d.removeLocked(e)
		return
	}
	if e == nil {
		e = &deadline{name: name, expiring: true} // not in the queue yet
		d.entries[name] = e
	}
	e.index, e.duration = r.GetModifyIndex(), duration
	d.placeLocked(e, time.Now().Add(duration))
}

// placeLocked gives a resource a deadline and its place in the queue.
func (d *Deadlines) placeLocked(e *deadline, at time.Time) {
	e.at, e.queued = at, at
	if e.expiring {
		e.expiring = false
		heap.Push(&d.queue, e)
	} else {
		heap.Fix(&d.queue, e.position)
	}
	if e.position == 0 {
		d.changed.Notify()
	}
}

func (d *Deadlines) removeLocked(e *deadline) {
	if e == nil {
		return
	}
	if !e.expiring {
		heap.Remove(&d.queue, e.position)
	}
	delete(d.entries, e.name)
}

// confirm waits for a confirmation that begins after the call.
func (d *Deadlines) confirm(ctx context.Context) error {
	d.mu.Lock()
	if d.entries == nil {
		d.mu.Unlock()
		return resource.ErrNotLeader
	}
	if d.next == nil {
		d.next = &confirmation{done: make(chan struct{})}
	}
	c := d.next
	d.mu.Unlock()
	select {
	case d.waiting <- struct{}{}:
	default:
	}
	select {
	case <-c.done:
		return c.err
	case <-ctx.Done():
		return ctx.Err()
	}
}

// Run tracks the deadlines until ctx ends. Call Run while this server leads,
// and join it before the next call.
func (d *Deadlines) Run(ctx context.Context) error {
	d.mu.Lock()
	d.entries, d.queue = map[string]*deadline{}, nil
	d.mu.Unlock()
	g, gctx := errgroup.WithContext(ctx)
	g.Go(func() error { return d.follow(gctx) })
	g.Go(func() error { return d.expireDue(gctx) })
	g.Go(func() error { return d.confirmAll(gctx) })
	err := g.Wait()
	d.mu.Lock()
	defer d.mu.Unlock()
	d.entries, d.queue = nil, nil
	if d.next != nil {
		d.next.err = resource.ErrNotLeader
		close(d.next.done)
		d.next = nil
	}
	if ctx.Err() == nil {
		return fmt.Errorf("track the deadlines of %s: %w", resource.TypeString(d.cfg.Type), err)
	}
	return nil
}

// confirmAll makes the confirmations for which renewals wait.
func (d *Deadlines) confirmAll(ctx context.Context) error {
	for {
		select {
		case <-d.waiting:
		case <-ctx.Done():
			return ctx.Err()
		}
		d.mu.Lock()
		c := d.next
		d.next = nil
		d.mu.Unlock()
		if c == nil {
			continue
		}
		if c.err = d.cfg.Confirm(ctx); c.err != nil && ctx.Err() != nil {
			c.err = resource.ErrNotLeader
		}
		close(c.done)
		backoff.Sleep(ctx, confirmInterval, nil)
	}
}

// follow loads the resources from watches.
func (d *Deadlines) follow(ctx context.Context) error {
	for {
		w, err := d.cfg.Backend.Watch(resource.Query{Type: d.cfg.Type})
		if err != nil {
			return err
		}
		for err == nil {
			var ev *pb.WatchEvent
			if ev, err = w.Next(ctx); err != nil {
				break
			}
			if r := ev.GetUpsert().GetResource(); r != nil {
				d.Set(r)
			}
			if r := ev.GetDelete().GetResource(); r != nil {
				d.remove(r)
			}
		}
		w.Close()
		if !errors.Is(err, resource.ErrWatchReset) {
			return err
		}
	}
}

// remove removes a deleted resource.
func (d *Deadlines) remove(r *pb.Resource) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if e := d.entries[r.GetId().GetName()]; e != nil && e.index <= r.GetModifyIndex() {
		d.removeLocked(e)
	}
}

// expireDue expires the resources whose deadline has passed.
func (d *Deadlines) expireDue(ctx context.Context) error {
	g, ctx := errgroup.WithContext(ctx)
	g.SetLimit(maxExpiring)
	for ctx.Err() == nil {
		changed := d.changed.Wait()
		due, next := d.takeDue(time.Now())
		for batch := range slices.Chunk(due, maxBatch) {
			g.Go(func() error {
				d.expire(ctx, batch)
				return nil
			})
		}
		backoff.Sleep(ctx, next, changed)
	}
	_ = g.Wait() // its functions return nil
	return ctx.Err()
}

// takeDue takes the resources that expire now from the queue. From then on they
// cannot be renewed. next is the time until the next deadline.
func (d *Deadlines) takeDue(now time.Time) (due []Renewal, next time.Duration) {
	d.mu.Lock()
	defer d.mu.Unlock()
	for len(d.queue) > 0 {
		e := d.queue[0]
		if wait := e.queued.Sub(now); wait > 0 {
			return due, wait
		}
		if e.at.After(now) { // renewed
			e.queued = e.at
			heap.Fix(&d.queue, 0)
			continue
		}
		heap.Pop(&d.queue)
		e.expiring = true
		due = append(due, Renewal{e.name, e.index})
	}
	return due, time.Hour
}

// expire ends resources that takeDue has returned.
func (d *Deadlines) expire(ctx context.Context, due []Renewal) {
	var rs []*pb.Resource
	var tried []Renewal
	for _, e := range due {
		r, err := d.cfg.Backend.Read(ctx, resource.Eventual, resource.ID(d.cfg.Type, e.Name))
		switch {
		case err != nil:
			d.failed(ctx, e, err)
		case r.GetModifyIndex() == e.Token: // otherwise the watch delivers the change
			rs, tried = append(rs, r), append(tried, e)
		}
	}
	if len(rs) == 0 {
		return
	}
	err := d.cfg.Expire(ctx, rs)
	if err == nil {
		return // the watch delivers the changes
	}
	for _, e := range tried {
		if len(tried) > 1 && resource.Rejected(err) {
			d.expire(ctx, []Renewal{e})
		} else {
			d.failed(ctx, e, err)
		}
	}
}

// failed makes a resource expire again later, unless it is gone.
func (d *Deadlines) failed(ctx context.Context, e Renewal, err error) {
	if ctx.Err() != nil {
		return
	}
	gone := errors.Is(err, resource.ErrNotFound)
	if !gone && !errors.Is(err, resource.ErrConflict) {
		d.cfg.Logger.Warn("cannot end what has expired", "resource", resource.IDString(resource.ID(d.cfg.Type, e.Name)),
			"err", err)
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	k := d.entries[e.Name]
	switch {
	case k == nil || !k.expiring || k.index != e.Token:
	case gone:
		d.removeLocked(k)
	default:
		d.placeLocked(k, time.Now().Add(expireRetry))
	}
}

// deadlineQueue is a heap with the earliest queued time first.
type deadlineQueue []*deadline

func (q deadlineQueue) Len() int           { return len(q) }
func (q deadlineQueue) Less(i, j int) bool { return q[i].queued.Before(q[j].queued) }
func (q deadlineQueue) Swap(i, j int) {
	q[i], q[j] = q[j], q[i]
	q[i].position, q[j].position = i, j
}

// Push implements heap.Interface.
func (q *deadlineQueue) Push(x any) {
	e := x.(*deadline)
	e.position = len(*q)
	*q = append(*q, e)
}

// Pop implements heap.Interface.
func (q *deadlineQueue) Pop() any {
	last := len(*q) - 1
	e := (*q)[last]
	(*q)[last] = nil
	*q = (*q)[:last]
	return e
}
