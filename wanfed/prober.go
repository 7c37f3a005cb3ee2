// SPDX-License-Identifier: MPL-2.0

package wanfed

import (
	"cmp"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"math/rand/v2"
	"sync"
	"time"
)

// ProberConfig configures a Prober.
type ProberConfig struct {
	Dialer *Dialer // required; it uses the results
	// Interval is the time between the last success of a path, by a dial, a
	// probe or an echo, and its next probe. Up to a quarter is added as jitter.
	// Default (0): 20 s.
	Interval time.Duration
	Logger   *slog.Logger // default: no log

	// Changed by tests.
	gap     time.Duration // minimum between the starts of two probes; 0: 500 ms
	timeout time.Duration // of one probe; 0: 5 s
}

// Prober probes paths that no connection uses. It detects that such a path
// failed before it is needed, and that a failed path works again. A probe
// exercises the whole path: TCP, TLS with the name of the remote datacenter,
// ALPN, and an echo from a server there. Servers that speak Consul's protocols
// do not echo; for them a complete handshake is a success.
//
// A Prober starts at most two probes per second, regardless of the number of
// datacenters. At most four probes run at once. A probe times out after 5 s. A
// Prober sends nothing while all paths are in use. With the defaults it probes
// up to 40 paths per Interval. A round over 1,000 datacenters with 4 paths each
// takes about half an hour. New paths come first in a round. Every second probe
// is for paths that have just failed.
type Prober struct {
	cfg ProberConfig
	d   *Dialer
	log *slog.Logger
}

const (
	// maxProbes bounds concurrent probes. A probe over a path that drops
	// packets takes the whole timeout.
	maxProbes = 4
	// probeRetry is the wait after a failure. It doubles with each failed probe
	// up to ProberConfig.Interval.
	probeRetry = 3 * time.Second
	// maxProbeWait is the upper limit for a path that has never worked. It
	// replaces ProberConfig.Interval, since the network may block the path.
	maxProbeWait = 5 * time.Minute
	// probeJitter is the largest jitter, as a part of the wait.
	probeJitter = 0.25
)

// NewProber checks cfg. A Prober needs no Close.
func NewProber(cfg ProberConfig) (*Prober, error) {
	if cfg.Dialer == nil {
		return nil, errors.New("prober: Dialer is missing")
	}
	if cfg.Interval < 0 {
		return nil, errors.New("prober: Interval must not be negative")
	}
	cfg.Interval = cmp.Or(cfg.Interval, 20*time.Second)
	cfg.gap = cmp.Or(cfg.gap, 500*time.Millisecond)
	cfg.timeout = cmp.Or(cfg.timeout, 5*time.Second)
	return &Prober{cfg: cfg, d: cfg.Dialer, log: orDiscard(cfg.Logger)}, nil
}

// Run probes until ctx ends, waits for the last probe and returns nil. A change
// of the address book and a failing path start the next round early. While Run
// runs, a failed path is penalized until a probe or a dial succeeds. Call Run
// once.
func (p *Prober) Run(ctx context.Context) error {
	ctx, cancel := context.WithCancel(ctx)
	var wg sync.WaitGroup
	defer wg.Wait()
	defer cancel()
	p.d.paths.setPenalty(failurePenaltyProbed)
	defer p.d.paths.setPenalty(failurePenalty)
	done := make(chan pathKey, maxProbes) // one slot for every running probe
	busy := map[pathKey]bool{}
	preferUrgent := true
	for {
		changed := p.d.cfg.AddressBook.Changed()
		plan := probePlan{} // empty at the limit of probes; a probe that ends frees a slot
		if len(busy) < maxProbes {
			plan = p.d.paths.planProbe(p.cfg.Interval, busy, preferUrgent, time.Now())
		}
		if plan.found {
			busy[plan.key] = true
			preferUrgent = !plan.urgent
			wg.Go(func() {
				p.probe(ctx, plan.key.dc, plan.path)
				done <- plan.key
			})
			if !sleep(ctx, p.cfg.gap) {
				return nil
			}
			for len(done) > 0 {
				delete(busy, <-done)
			}
			continue
		}
		timer := time.NewTimer(cmp.Or(plan.wait, time.Hour))
		select {
		case <-ctx.Done():
			timer.Stop()
			return nil
		case k := <-done:
			delete(busy, k)
		case <-changed:
		case <-p.d.paths.healthC:
		case <-timer.C:
		}
		timer.Stop()
	}
}

// probe probes one path and records the result.
func (p *Prober) probe(ctx context.Context, dc string, path Path) {
	pctx, cancel := context.WithTimeout(ctx, p.cfg.timeout)
	defer cancel()
	pc, rtt, err := p.d.probe(pctx, dc, path)
	if ctx.Err() != nil {
		return
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
		return
	}
	p.d.paths.recordFailure(dc, path, err, func(s *pathState) {
		count(s)
		s.failedProbes++
		s.ProbeFailures++
		s.Probed = true
	})
	log.Debug("probe failed", "err", err)
}

// probe exchanges an echo with any server of dc over path.
func (d *Dialer) probe(ctx context.Context, dc string, path Path) (pc *pathConn, rtt time.Duration, err error) {
	c, err := d.request("", dc, ProtoGossip, ProtoConsulPacket).dialPath(ctx, path)
	if err != nil {
		return nil, 0, err
	}
	defer closeConn(c)
	if pc = pathConnOf(c); c.ConnectionState().NegotiatedProtocol != ProtoGossip {
		return pc, pc.roundTrip(), nil
	}
	stop := context.AfterFunc(ctx, func() { c.NetConn().Close() })
	defer stop()
	rtt, err = roundTripEcho(c, rand.Uint64())
	if ctx.Err() != nil {
		err = fmt.Errorf("%w (%w)", errNoEcho, ctx.Err())
	}
	return pc, rtt, err
}

// errNoEcho reports that TLS over a path succeeded but the server did not echo.
var errNoEcho = errors.New("no echo from a server")

// roundTripEcho sends an echo frame and waits for its return.
func roundTripEcho(c *tls.Conn, n uint64) (time.Duration, error) {
	sent := appendEcho(nil, n)
	start := time.Now()
	if _, err := c.Write(sent); err != nil {
		return 0, fmt.Errorf("%w: write: %w", errNoEcho, err)
	}
	var got [frameHeadLen + echoLen]byte
	if _, err := io.ReadFull(c, got[:]); err != nil {
		return 0, fmt.Errorf("%w: read: %w", errNoEcho, err)
	}
	if string(got[:]) != string(sent) {
		return 0, fmt.Errorf("%w: received a different frame", errNoEcho)
	}
	return time.Since(start), nil
}

// probeWait returns the wait between the last event of a path and its next
// probe.
func (h pathHistory) probeWait(interval time.Duration, jitter float64) time.Duration {
	wait := interval
	if h.hasFailed() {
		limit := interval
		if h.lastSuccess.IsZero() {
			limit = max(interval, maxProbeWait)
		}
		wait = min(probeRetry<<min(max(h.failedProbes-1, 0), 16), limit)
	}
	return wait + time.Duration(jitter*probeJitter*float64(wait))
}

// probeDue returns the time at which a path is probed. It returns the zero
// time, which means now, for a path that was never used.
func (s *pathState) probeDue(interval time.Duration) time.Time {
	last := s.lastProbe
	for _, t := range []time.Time{s.lastSuccess, s.lastFailure} {
		if t.After(last) {
			last = t
		}
	}
	if last.IsZero() {
		return last
	}
	return last.Add(s.probeWait(interval, s.jitter))
}

// probePlan is the next path to probe, or the wait until one is due.
type probePlan struct {
	key    pathKey
	path   Path
	urgent bool
	found  bool
	wait   time.Duration // 0: until something changes
}

// planProbe chooses among the paths that are due and not busy. A path is urgent
// if it has just failed. Urgent paths must not wait for the round over all
// other paths, and must not starve that round. preferUrgent selects the group
// that goes first. Inside a group, new paths go first, then the path that has
// been due for the longest time.
func (t *pathTable) planProbe(
	interval time.Duration, busy map[pathKey]bool, preferUrgent bool, now time.Time,
) probePlan {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.pruneLocked()
	var best, other probePlan // of the preferred group, and of the rest
	var bestDue, otherDue, next time.Time
	for dc, paths := range t.current.Paths {
		if dc == t.localDC {
			continue
		}
		works := t.hasWorkingLocked(dc, paths)
		for _, path := range paths {
			k := pathKey{dc, path.Addr}
			if busy[k] || works && path.Rank >= RankCached {
				continue
			}
			var due time.Time
			urgent := false
			if s := t.known[k]; s != nil {
				due = s.probeDue(interval)
				urgent = !s.lastSuccess.IsZero() && s.hasFailed() && s.failedProbes <= 3
			}
			plan := probePlan{key: k, path: path, urgent: urgent, found: true}
			switch {
			case due.After(now):
				if next.IsZero() || due.Before(next) {
					next = due
				}
			case urgent == preferUrgent:
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

// hasWorkingLocked reports whether a listed path to dc works.
func (t *pathTable) hasWorkingLocked(dc string, paths []Path) bool {
	for _, p := range paths {
		if s := t.known[pathKey{dc, p.Addr}]; p.Rank < RankCached && s != nil && s.health() == PathOK {
			return true
		}
	}
	return false
}
