// SPDX-License-Identifier: MPL-2.0

package catalog

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"google.golang.org/protobuf/proto"

	"github.com/wanfed/wanfed/api/pb"
	"github.com/wanfed/wanfed/resource"
)

// Run watches the deadlines until ctx ends. Call it while this server leads, once at a time.
func (p *TTLMonitor) Run(ctx context.Context) error {
	p.mu.Lock()
	p.checks = map[string]*reported{}
	p.mu.Unlock()
	ctx, cancel := context.WithCancel(ctx)
	var wg sync.WaitGroup
	failed := make(chan error, 1)
	wg.Go(func() { failed <- p.follow(ctx) })
	defer func() {
		cancel()
		wg.Wait()
		p.mu.Lock()
		defer p.mu.Unlock()
		p.checks = nil
	}()
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case err := <-failed:
			if ctx.Err() != nil {
				return nil
			}
			return fmt.Errorf("watch checks: %w", err)
		case <-timer.C:
		case <-p.wake:
		}
		due, next := p.due(time.Now())
		for _, d := range due {
			if err := p.act(ctx, d); err != nil && ctx.Err() == nil {
				p.log.Warn("writing what a check's deadline means", "check", d.name, "err", err)
				p.later(d.name)
				next = min(next, reportRetry)
			}
		}
		timer.Reset(next)
	}
}

// follow keeps the checks that are known as they are stored, until ctx ends.
func (p *TTLMonitor) follow(ctx context.Context) error {
	for {
		w, err := p.backend.Watch(resource.Query{Type: CheckType})
		if err != nil {
			return err
		}
		err = p.followWatch(ctx, w)
		w.Close()
		if !errors.Is(err, resource.ErrWatchReset) {
			return err
		}
	}
}

func (p *TTLMonitor) followWatch(ctx context.Context, w resource.Watch) error {
	for {
		ev, err := w.Next(ctx)
		if err != nil {
			return err
		}
		if r := ev.GetUpsert().GetResource(); r != nil {
			if err := p.upsert(r); err != nil {
				p.log.Error("reading a check", "check", r.GetId().GetName(), "err", err)
			}
		} else if r := ev.GetDelete().GetResource(); r != nil {
			p.mu.Lock()
			delete(p.checks, r.GetId().GetName())
			p.mu.Unlock()
		}
	}
}

// upsert takes over a check that was written: by its registration, or by this server. Either gives it its full TTL.
func (p *TTLMonitor) upsert(r *pb.Resource) error {
	c, err := resource.Decode[*pb.Check](r)
	if err != nil {
		return err
	}
	name, now := r.GetId().GetName(), time.Now()
	p.mu.Lock()
	defer p.mu.Unlock()
	if c.GetTtl().AsDuration() <= 0 || c.Type != TypeTTL {
		delete(p.checks, name)
		return nil
	}
	k := p.checks[name]
	if k == nil {
		k = new(reported)
		p.checks[name] = k
	}
	k.learn(c, now)
	k.heard = now
	p.poke()
	return nil
}

// deed is what a deadline that has passed asks for.
type deed struct {
	name          string
	node, service string
	gone          bool   // delete the service
	expired       bool   // write it critical
	output        string // else: write this output
}

// due returns what deadlines that have passed ask for, and how long until the next one.
func (p *TTLMonitor) due(now time.Time) (due []deed, next time.Duration) {
	p.mu.Lock()
	defer p.mu.Unlock()
	next = time.Hour
	for name, k := range p.checks {
		d := deed{name: name, node: k.node, service: k.service}
		at := k.heard.Add(k.ttl) // of what comes next
		switch {
		case k.status == StatusCritical && k.gone > 0:
			at = k.critical.Add(k.gone)
			d.gone = true
		case k.status == StatusCritical:
			at = time.Time{}
		default:
			d.expired = true
		}
		if out := k.wrote.Add(OutputInterval); k.pending != "" && (at.IsZero() || out.Before(at)) {
			at, d.gone, d.expired, d.output = out, false, false, k.pending
		}
		switch {
		case at.IsZero():
			continue
		case at.Before(k.retry):
			at = k.retry
		}
		if wait := at.Sub(now); wait > 0 {
			next = min(next, wait)
			continue
		}
		due = append(due, d)
	}
	return due, next
}

// later has a check wait after a write that failed.
func (p *TTLMonitor) later(name string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if k := p.checks[name]; k != nil {
		k.retry = time.Now().Add(reportRetry)
	}
}

func (p *TTLMonitor) act(ctx context.Context, d deed) error {
	for {
		r, c, err := p.read(ctx, d.name)
		if err != nil {
			return err
		}
		if c == nil || !p.still(d) {
			return nil // deleted, or reported, meanwhile
		}
		if d.gone {
			return p.remove(ctx, d, r)
		}
		c = proto.CloneOf(c)
		if d.expired {
			c.Status, c.Output = StatusCritical, TTLExpiredOutput
		} else {
			c.Output = d.output
		}
		err = put(ctx, p.backend, r, c)
		if errors.Is(err, resource.ErrConflict) {
			continue
		}
		if err == nil && d.expired {
			p.log.Info("check expired", "on", d.node, "check", c.CheckId, "service", d.service)
		}
		return err
	}
}

// still says whether a deed is still to be done, and notes one that is.
func (p *TTLMonitor) still(d deed) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	k, now := p.checks[d.name], time.Now()
	switch {
	case k == nil:
		return false
	case d.gone:
		return k.status == StatusCritical && now.Sub(k.critical) >= k.gone
	case d.expired:
		return k.status != StatusCritical && now.Sub(k.heard) >= k.ttl
	}
	if k.pending != d.output {
		return false
	}
	k.wrote, k.pending = now, ""
	return true
}

// remove deletes the service of a check that was critical for too long: the check's owner.
func (p *TTLMonitor) remove(ctx context.Context, d deed, check *pb.Resource) error {
	if check.GetOwner() == nil {
		p.mu.Lock()
		defer p.mu.Unlock()
		delete(p.checks, d.name)
		return nil
	}
	_, err := p.backend.Commit(ctx, resource.RemoveOp(check.GetOwner(), resource.AnyVersion))
	if err == nil {
		p.log.Info("service deleted: it was critical for too long", "on", d.node, "service", d.service)
	}
	return err
}
