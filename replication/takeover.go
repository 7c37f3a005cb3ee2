// SPDX-License-Identifier: MPL-2.0

package replication

import (
	"context"
	"time"

	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/wanfed/wanfed/api/pb"
)

const (
	// takeOverAfter is how long a datacenter that is to be the primary waits for the one before it to answer: long enough for its own
	// gateways to come back, if they were restarted too. A leader notes each noteAfter of it, so that the next one goes on from there.
	takeOverAfter = 20 * time.Second
	noteAfter     = takeOverAfter / 5
	// lastTimeout bounds the last look at what the former primary has.
	lastTimeout = time.Minute
)

// takeOver makes this datacenter the primary in the place of the one in m.
func (p *PrimaryManager) takeOver(ctx context.Context, m *pb.Primary) error {
	old := m.GetDatacenter()
	p.cfg.Logger.Info("this datacenter is to be the primary", "was", old)
	stop := func() {}
	defer func() { stop() }()
	noted, follows := p.unanswered(m), false
	heard := time.Now().Add(-noted)
	for {
		ways := p.cfg.PathsChanged()
		to, err := p.ask(ctx, old)
		if err == nil {
			heard = time.Now()
		}
		if silent := time.Since(heard).Round(time.Second); silent >= noted+noteAfter || err == nil && noted > 0 {
			if err := p.note(ctx, silent); err != nil {
				return err
			}
			noted = silent
		}
		switch {
		case err != nil && time.Since(heard) >= takeOverAfter:
			stop()
			stop = func() {}
			p.cfg.Logger.Warn("the former primary does not answer: what it acknowledged and nobody has copied here is not in the records", "was", old,
				"index", p.follower.HighestIndex(), "err", err)
			return p.become(ctx, m)
		case err != nil:
			p.waitsFor("takes over from %s, which does not answer, in %v: %v", old, takeOverAfter-time.Since(heard).Round(time.Second), err)
		case to == p.cfg.DC:
			stop()
			stop, follows = func() {}, false
			if p.last(ctx, old) {
				return p.become(ctx, m)
			}
		default:
			p.waitsFor("%s is to be the primary, but %s still is: set primary_datacenter = %q on all servers of %s, and restart them", p.cfg.DC, old, p.cfg.DC, old)
			if !follows {
				stop, follows = p.behind(ctx, old), true
			}
		}
		if !p.pause(ctx, ways) {
			return nil
		}
	}
}

// unanswered is for how long the primary in m has not answered leaders before this one, of the time that this process has been there: after
// a start of everything its gateways have as long as ever, whatever was noted before it.
func (p *PrimaryManager) unanswered(m *pb.Primary) time.Duration {
	return min(m.GetUnanswered().AsDuration(), time.Since(p.started))
}

// note notes for how long the former primary has not answered.
func (p *PrimaryManager) note(ctx context.Context, unanswered time.Duration) error {
	m := p.mark()
	if m == nil {
		return nil
	}
	if m.Unanswered = nil; unanswered > 0 {
		m.Unanswered = durationpb.New(unanswered)
	}
	return p.set(ctx, m)
}

// last gets all that the former primary has, which is all that there will be of it, and says whether it has.
func (p *PrimaryManager) last(ctx context.Context, old string) bool {
	p.waitsFor("takes over from %s: copies the last of its records", old)
	began := time.Now()
	stop := p.behind(ctx, old)
	defer stop()
	for time.Since(began) < lastTimeout && !p.follower.levelSince(began) {
		timer := time.NewTimer(lookEvery / 50)
		select {
		case <-timer.C:
		case <-ctx.Done():
			timer.Stop()
			return false
		}
	}
	return p.follower.levelSince(began) && p.follower.hasLast(p.cfg.DC) // another server had said that it has handed over: this one may be behind
}

// become makes the records here this datacenter's own, and says so.
func (p *PrimaryManager) become(ctx context.Context, m *pb.Primary) error {
	n, err := p.adopt(ctx)
	if err != nil {
		return err
	}
	if err := p.set(ctx, &pb.Primary{Datacenter: p.cfg.DC, Complete: true}); err != nil {
		return err
	}
	p.waitsFor("")
	if was := m.GetDatacenter(); was != "" || n > 0 {
		p.cfg.Logger.Info("this datacenter is the primary now", "was", was, "records", n)
	}
	<-ctx.Done()
	return nil
}
