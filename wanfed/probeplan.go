// SPDX-License-Identifier: MPL-2.0

package wanfed

import "time"

const (
	// probeRetry is how long after a failure a hop is probed again. It doubles with each probe that fails, up to
	// ProberConfig.Every,
	probeRetry = 3 * time.Second
	// or to this for a hop that has never worked: the network may allow nobody to use it.
	maxProbeWait = 5 * time.Minute
	// probeSpread is by how much a pause may be longer, as a part of it, so that servers do not probe in step.
	probeSpread = 0.25
)

// probeWait is how long after the last evidence about a hop it is probed.
func (e evidence) probeWait(every time.Duration, spread float64) time.Duration {
	wait := every
	if e.bad.After(e.good) {
		limit := every
		if e.good.IsZero() {
			limit = max(every, maxProbeWait)
		}
		wait = min(probeRetry<<min(max(e.fails-1, 0), 16), limit)
	}
	return wait + time.Duration(spread*probeSpread*float64(wait))
}

// probeDue is when a hop is to be probed; zero: nothing is known about it, so now.
func (s *pathState) probeDue(every time.Duration) time.Time {
	last := s.probed
	for _, t := range []time.Time{s.good, s.bad} {
		if t.After(last) {
			last = t
		}
	}
	if last.IsZero() {
		return last
	}
	return last.Add(s.probeWait(every, s.spread))
}

// probePlan is what to probe next, or how long there is nothing to probe.
type probePlan struct {
	key    pathKey
	hop    Path
	urgent bool
	found  bool
	wait   time.Duration // 0: until something changes
}

// plan chooses among the hops of the book that are due: with favour, urgent ones first, else last. Urgent are those that have
// just failed; they must neither wait for, nor starve, the round of all others, in which new hops come first. busy are
// being probed.
func (p *paths) plan(every time.Duration, busy map[pathKey]bool, favour bool, now time.Time) probePlan {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.reduceLocked()
	var best, other probePlan // of those favoured, and of the rest
	var bestDue, otherDue, next time.Time
	for dc, hops := range p.seen.Paths {
		if dc == p.ownDC {
			continue
		}
		works := p.worksLocked(dc, hops)
		for _, h := range hops {
			k := pathKey{dc, h.Addr}
			if busy[k] || works && h.Rank >= RankCached {
				continue
			}
			var due time.Time
			urgent := false
			if s := p.known[k]; s != nil {
				due = s.probeDue(every)
				urgent = !s.good.IsZero() && s.bad.After(s.good) && s.fails <= 3
			}
			plan := probePlan{key: k, hop: h, urgent: urgent, found: true}
			switch {
			case due.After(now):
				if next.IsZero() || due.Before(next) {
					next = due
				}
			case urgent == favour:
				if !best.found || due.Before(bestDue) {
					best, bestDue = plan, due
				}
			case !other.found || due.Before(otherDue):
				other, otherDue = plan, due
			}
		}
	}
	switch {
	case best.found:
		return best
	case other.found:
		return other
	case next.IsZero():
		return probePlan{}
	}
	return probePlan{wait: next.Sub(now)}
}

// worksLocked says whether a hop to dc that somebody names works.
func (p *paths) worksLocked(dc string, hops []Path) bool {
	for _, h := range hops {
		if s := p.known[pathKey{dc, h.Addr}]; h.Rank < RankCached && s != nil && s.health() == PathOK {
			return true
		}
	}
	return false
}
