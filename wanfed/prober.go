// SPDX-License-Identifier: MPL-2.0

package wanfed

import (
	"cmp"
	"context"
	"errors"
	"log/slog"
	"math/rand/v2"
	"slices"
	"sync"
	"time"

	"github.com/wanfed/wanfed/internal/backoff"
)

// ProberConfig configures a Prober.
type ProberConfig struct {
	Dialer *Dialer // required; it uses the results of the probes
	// Interval is the time from the last success of a path, by a dial, a probe
	// or an echo, to the next probe of the path. From 17 paths on it grows with
	// the number of paths. Up to a quarter is added as jitter. Default (0):
	// ProbeInterval.
	Interval time.Duration
	Logger   *slog.Logger // default: no log

	// Changed by tests.
	gap     time.Duration // minimum between the starts of two probes; 0: ProbeGap
	timeout time.Duration // of one probe; 0: 5 s
}

// Prober probes paths that no connection uses. It detects that an unused path
// failed, and that a failed path works again. A probe exercises the whole path:
// TCP, TLS with the name of the remote datacenter, ALPN, and an echo from a
// server there. Servers that speak Consul's protocols do not echo. For these
// servers a complete handshake is a success.
//
// A Prober starts at most two probes per second, regardless of the number of
// datacenters. At most four probes run at once. A probe times out after 5 s. A
// Prober sends nothing while all paths are in use. Probes yield to dials and to
// a busy processor. The Prober waits up to 3 s for dials in progress. If its
// timer fires late, because the processor is busy, the Prober waits 20 times as
// long as the timer was late, up to 10 s. After a probe that succeeded, but took more
// than half a second, it waits four times the excess, up to 10 s.
//
// With 1,000 datacenters and 4 paths each, probing every path once takes more
// than an hour. New paths come first. Every second probe is for a path that has
// just failed, if such a path is due. A path is due at once when an echo over it
// is late.
type Prober struct {
	cfg ProberConfig
	d   *Dialer
	log *slog.Logger
}

const (
	// ProbeInterval is the default of ProberConfig.Interval.
	ProbeInterval = 20 * time.Second
	// ProbeGap is the minimum time between the starts of two probes.
	ProbeGap = 500 * time.Millisecond
	// probePace is the average time between two probes of working paths. It
	// bounds the cost of probes in a large federation.
	probePace = 1250 * time.Millisecond
	// maxYield bounds the wait for dials in progress.
	maxYield = 3 * time.Second
	// lateFactor multiplies the time by which a timer was late: see busyDelay.
	lateFactor = 20
	// maxLate bounds the result that is added to the gap between two probes.
	maxLate = 10 * time.Second
	// A successful probe that takes longer than slowProbe delays the next one by
	// slowProbeFactor times the excess. Over the longest paths it takes 1 s.
	slowProbe       = 500 * time.Millisecond
	slowProbeFactor = 4
	// maxProbes bounds concurrent probes. A probe over a path that drops
	// packets takes the whole timeout.
	maxProbes = 4
	// probeRetry is the time from a failure to the next probe. It doubles with
	// each failed probe, up to the smaller of ProberConfig.Interval and
	// ProbeInterval.
	probeRetry = 3 * time.Second
	// maxProbeWait is the upper bound of that doubling for a path that has never
	// worked. Such a path is probed rarely, because the network may block it.
	maxProbeWait = 5 * time.Minute
	// downRetry bounds the time from a failure to the next probe of a path that
	// worked before, while no path to its datacenter works. With n such paths the
	// bound is n times probePace, if that is longer. A datacenter that works
	// again is thus soon reachable.
	downRetry = 2 * time.Second
	// probeJitter is the largest jitter, as a fraction of the wait.
	probeJitter = 0.25
)

// probeInterval returns ProberConfig.Interval, adapted to n paths to other
// datacenters.
func probeInterval(interval time.Duration, n int) time.Duration {
	return time.Duration(float64(interval) * max(1, float64(n)*float64(probePace)/float64(ProbeInterval)))
}

// NewProber checks cfg. A Prober needs no Close.
func NewProber(cfg ProberConfig) (*Prober, error) {
	if cfg.Dialer == nil {
		return nil, errors.New("prober: Dialer is missing")
	}
	if cfg.Interval < 0 {
		return nil, errors.New("prober: Interval must not be negative")
	}
	cfg.Interval = cmp.Or(cfg.Interval, ProbeInterval)
	cfg.gap = cmp.Or(cfg.gap, ProbeGap)
	cfg.timeout = cmp.Or(cfg.timeout, 5*time.Second)
	return &Prober{cfg: cfg, d: cfg.Dialer, log: orDiscard(cfg.Logger)}, nil
}

// Run probes paths until ctx ends, waits for the last probe and returns nil.
// After a change of the address book, or of the health of a path, Run selects
// the next probe again at once. While Run runs, a failed path is penalized for up to ten minutes,
// until a probe or a dial succeeds. Call Run once.
func (p *Prober) Run(ctx context.Context) error {
	ctx, cancel := context.WithCancel(ctx)
	var wg sync.WaitGroup
	defer wg.Wait()
	defer cancel()
	p.d.paths.setPenalty(failurePenaltyProbed)
	defer p.d.paths.setPenalty(failurePenalty)
	busy := map[pathKey]bool{}                // paths that are being probed
	done := make(chan probeResult, maxProbes) // one slot for every running probe
	var took time.Duration                    // by the last probe that succeeded
	finish := func(r probeResult) {
		delete(busy, r.key)
		took = cmp.Or(r.took, took)
	}
	preferUrgent := true
	for ctx.Err() == nil {
		changed, healthChanged := p.d.cfg.AddressBook.Changed(), p.d.paths.healthChanged.Wait()
		wait := time.Hour // if maxProbes run; the end of one of them wakes the select
		if len(busy) < maxProbes {
			next := p.d.paths.planProbe(p.cfg.Interval, busy, preferUrgent, time.Now())
			if wait = next.wait; wait <= 0 {
				busy[next.key] = true
				preferUrgent = !next.urgent
				wg.Go(func() {
					done <- probeResult{next.key, p.probe(ctx, next.key.dc, next.path)}
				})
				p.pause(ctx, took)
				for len(done) > 0 {
					finish(<-done)
				}
				continue
			}
		}
		select {
		case <-ctx.Done():
		case r := <-done:
			finish(r)
		case <-changed:
		case <-healthChanged:
		case <-time.After(wait):
		}
	}
	return nil
}

// probeResult is the end of a probe.
type probeResult struct {
	key  pathKey
	took time.Duration // 0: the probe failed
}

// pause waits until the next probe may start. took is the duration of the last one
// that succeeded.
func (p *Prober) pause(ctx context.Context, took time.Duration) {
	start := time.Now()
	backoff.Sleep(ctx, p.cfg.gap, nil)
	late := busyDelay(time.Since(start)-p.cfg.gap, maxLate)
	backoff.Sleep(ctx, max(late, min(slowProbeFactor*(took-slowProbe), maxLate)), nil)
	p.d.limit.yield(ctx, maxYield)
}

// busyDelay returns the time by which work waits after a timer that fired late,
// because the processor was busy. limit is an upper bound.
func busyDelay(late, limit time.Duration) time.Duration { return min(lateFactor*max(late, 0), limit) }

// probe probes one path and records the result. It returns its duration, or 0 after
// a failure.
func (p *Prober) probe(ctx context.Context, dc string, path Path) (took time.Duration) {
	start := time.Now()
	pctx, cancel := context.WithTimeout(ctx, p.cfg.timeout)
	defer cancel()
	pc, rtt, err := p.d.probe(pctx, dc, path, 1)
	if ctx.Err() != nil {
		return 0
	}
	count := func(s *pathState) {
		s.Probes++
		s.lastProbe, s.jitter = time.Now(), rand.Float64()
	}
	log := p.log.With("peer", "*."+dc, "gateway", path.Addr)
	if err == nil {
		p.d.paths.recordSuccess(dc, path, pc.addr, rtt, count)
		p.d.reachable.Notify(dc)
		log.Debug("probe succeeded", "remote", pc.addr, "rtt", rtt)
		return time.Since(start)
	}
	p.d.paths.recordFailure(dc, path, err, func(s *pathState) {
		count(s)
		s.failedProbes++
		s.ProbeFailures++
		s.Probed = true
	})
	log.Debug("probe failed", "err", err)
	return 0
}

// probeWait returns the time from the last success, failure or probe of a path
// to its next probe. The argument bound is an upper bound for a failed path.
func (h pathHistory) probeWait(interval, bound time.Duration, jitter float64) time.Duration {
	wait := interval
	if h.hasFailed() {
		limit := min(interval, ProbeInterval)
		if h.lastSuccess.IsZero() {
			limit = max(interval, maxProbeWait)
		}
		wait = min(probeRetry<<min(max(h.failedProbes-1, 0), 16), limit, bound)
	}
	return wait + time.Duration(jitter*probeJitter*float64(wait))
}

// probeDue returns the time of the next probe of a path. It returns the zero
// time for a path that was never used. A suspected path is due at once.
func (s *pathState) probeDue(interval, bound time.Duration) time.Time {
	last := slices.MaxFunc([]time.Time{s.lastProbe, s.lastSuccess, s.lastFailure}, time.Time.Compare)
	switch {
	case last.IsZero():
		return last
	case s.suspected.After(last):
		return s.suspected
	}
	return last.Add(s.probeWait(interval, bound, s.jitter))
}

// plannedProbe is the next probe of a path.
type plannedProbe struct {
	key    pathKey
	path   Path
	urgent bool          // the path worked and then failed at most 3 probes, or an echo over it is late
	due    time.Time     // zero: the path was never used
	wait   time.Duration // until due; at most 0: the path is probed now
}

// before reports whether p starts before o. Due probes start first. Of the due
// probes, those with urgent equal to preferUrgent start first, then the probe
// that has been due for the longest time.
func (p plannedProbe) before(o plannedProbe, preferUrgent bool) bool {
	switch {
	case (p.wait > 0) != (o.wait > 0):
		return p.wait <= 0
	case p.wait <= 0 && p.urgent != o.urgent:
		return p.urgent == preferUrgent
	}
	return p.due.Before(o.due)
}

// planProbe returns the first probe in the order of plannedProbe.before. If no
// probe is due within an hour, the result has no path and a wait of one hour.
//
// The probes of paths that have just failed must not wait until all other paths
// were probed, and must not starve those probes. The caller therefore changes
// preferUrgent after each probe. planProbe omits busy paths. It also omits
// cached paths to a datacenter that another path reaches.
func (t *pathTable) planProbe(
	interval time.Duration, busy map[pathKey]bool, preferUrgent bool, now time.Time,
) plannedProbe {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.pruneLocked()
	interval = probeInterval(interval, t.countLocked())
	down := t.downLocked()
	downBound := max(downRetry, time.Duration(len(down))*probePace)
	first := plannedProbe{due: now.Add(time.Hour), wait: time.Hour} // without a path
	for dc, paths := range t.current.Paths {
		if dc == t.localDC {
			continue
		}
		works := slices.ContainsFunc(paths, func(p Path) bool {
			s := t.known[pathKey{dc, p.Addr}]
			return p.Rank < RankCached && s != nil && s.health() == PathOK
		})
		for _, path := range paths {
			p := plannedProbe{key: pathKey{dc, path.Addr}, path: path}
			if busy[p.key] || works && path.Rank >= RankCached {
				continue
			}
			if s := t.known[p.key]; s != nil {
				bound := maxProbeWait
				if down[p.key] {
					bound = downBound
				}
				p.due = s.probeDue(interval, bound)
				p.urgent = !s.lastSuccess.IsZero() && s.hasFailed() && s.failedProbes <= 3 ||
					!p.due.IsZero() && p.due.Equal(s.suspected)
			}
			p.wait = p.due.Sub(now)
			if p.before(first, preferUrgent) {
				first = p
			}
		}
	}
	return first
}

// downLocked returns the failed paths to which downRetry applies.
func (t *pathTable) downLocked() map[pathKey]bool {
	works := map[string]bool{}
	for k, s := range t.known {
		if h := s.health(); h == PathOK || h == PathSlow {
			works[k.dc] = true
		}
	}
	down := map[pathKey]bool{}
	for k, s := range t.known {
		if k.dc != t.localDC && !works[k.dc] && s.health() == PathFailing && !s.lastSuccess.IsZero() {
			down[k] = true
		}
	}
	return down
}
