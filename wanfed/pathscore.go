// SPDX-License-Identifier: MPL-2.0

package wanfed

import (
	"cmp"
	"math"
	"slices"
	"time"
)

const (
	// failurePenalty is the time for which a path is ordered behind the others
	// after it failed or was slower than a path dialed later.
	failurePenalty = time.Minute
	// failurePenaltyProbed replaces failurePenalty while a Prober runs, because
	// a successful probe ends the penalty early.
	failurePenaltyProbed = 10 * time.Minute
	// provenPeriod is the time for which a success proves that a path works.
	provenPeriod = 2 * time.Minute
	// flapHalfLife is the half-life of pathHistory.flaps.
	flapHalfLife = time.Minute
	// flapCost is the time that one new failure adds to the cost of a path. A
	// failed dial costs about one DialerConfig.AttemptDelay.
	flapCost = 250 * time.Millisecond
	// maxFlaps is the value of pathHistory.flaps from which connections do not
	// migrate to the path: two recent failures are tolerated, three are not.
	maxFlaps = 2.5
	// rttWeight weighs the newest sample of the smoothed RTT: 1/rttWeight.
	rttWeight = 4
	// minSamples is the number of RTT samples that a path needs before a
	// connection migrates to it for its speed.
	minSamples = 3
	// Two paths count as equally fast if they differ by at most 1/atPar of the
	// faster one, or by atParLeast.
	atPar, atParLeast = 4, 10 * time.Millisecond
	// A connection migrates to a path that is faster by at least 1/faster of
	// that path's RTT and by fasterLeast. The difference to atPar is
	// hysteresis.
	faster, fasterLeast = 2, 20 * time.Millisecond
)

// pathHistory contains the measurements of dials, probes and echoes for one
// path.
type pathHistory struct {
	lastSuccess time.Time // zero: never
	lastFailure time.Time // or the last time a path dialed later won; zero: never

	rtt          time.Duration // smoothed round trip to a server behind the path; 0: not measured
	samples      int           // in rtt
	failedProbes int           // in a row
	flaps        float64       // failures after a success, decayed by flapHalfLife as of flapsAt
	flapsAt      time.Time
}

// recordSuccess records a success and the round trip that it measured; 0: none.
func (h *pathHistory) recordSuccess(now time.Time, rtt time.Duration) {
	h.lastSuccess, h.failedProbes = now, 0
	if rtt <= 0 {
		return
	}
	if h.samples++; h.samples == 1 {
		h.rtt = rtt
		return
	}
	h.rtt += (rtt - h.rtt) / rttWeight
}

// recordFailure records a failure. Failures in a row count as one flap.
func (h *pathHistory) recordFailure(now time.Time) {
	if !h.lastSuccess.IsZero() && !h.hasFailed() {
		h.flaps, h.flapsAt = h.flapsNow(now)+1, now
	}
	h.lastFailure = now
}

// hasFailed reports whether the last event was a failure.
func (h *pathHistory) hasFailed() bool { return h.lastFailure.After(h.lastSuccess) }

func (h pathHistory) flapsNow(now time.Time) float64 {
	if h.flaps == 0 {
		return 0
	}
	return h.flaps * math.Exp2(-float64(now.Sub(h.flapsAt))/float64(flapHalfLife))
}

// isPenalized reports whether the path failed within penalty and has not worked
// since.
func (h pathHistory) isPenalized(now time.Time, penalty time.Duration) bool {
	return h.hasFailed() && now.Sub(h.lastFailure) < penalty
}

// isProven reports whether the path worked recently and has not failed since.
func (h pathHistory) isProven(now time.Time) bool {
	return !h.lastSuccess.IsZero() && !h.hasFailed() && now.Sub(h.lastSuccess) < provenPeriod
}

// cost is the round trip of the path plus the expected cost of its flaps.
func (h pathHistory) cost(now time.Time) time.Duration {
	return h.rtt + time.Duration(h.flapsNow(now)*float64(flapCost))
}

// atParLimit is the highest cost that counts as equal to c.
func atParLimit(c time.Duration) time.Duration { return c + max(c/atPar, atParLeast) }

// scorer compares the paths to one datacenter at one moment.
type scorer struct {
	mode    Mode
	penalty time.Duration // see pathHistory.isPenalized
	now     time.Time
	history func(Path) pathHistory
}

// rankedPath is a path with its sort key.
type rankedPath struct {
	Path
	history   pathHistory
	penalized bool
	class     int
	proven    bool
	slow      time.Duration // cost of a proven path that is not at par with the best of its class and rank; else 0
}

// order returns paths in the order to dial them. Penalized paths come last,
// ordered by the time of their failure, oldest first. The other paths are
// ordered by class of mode, then by rank, then proven before unproven. Proven
// paths at par with the fastest path keep the order of the address book. Slower
// paths follow.
func (s scorer) order(paths []Path) []Path {
	type kind struct{ class, rank int }
	best := map[kind]time.Duration{}
	list := make([]rankedPath, len(paths))
	for i, p := range paths {
		h := s.history(p)
		r := rankedPath{
			Path: p, history: h, penalized: h.isPenalized(s.now, s.penalty),
			class: s.mode.class(p), proven: h.isProven(s.now),
		}
		list[i] = r
		k := kind{r.class, p.Rank}
		if c, ok := best[k]; r.proven && h.rtt > 0 && (!ok || h.cost(s.now) < c) {
			best[k] = h.cost(s.now)
		}
	}
	for i, r := range list {
		if c := r.history.cost(s.now); r.proven && c > atParLimit(best[kind{r.class, r.Rank}]) {
			list[i].slow = c
		}
	}
	slices.SortStableFunc(list, compareRanked)
	ordered := make([]Path, len(list))
	for i, r := range list {
		ordered[i] = r.Path
	}
	return ordered
}

func compareRanked(a, b rankedPath) int {
	switch {
	case a.penalized != b.penalized:
		return firstIf(b.penalized)
	case a.penalized:
		return a.history.lastFailure.Compare(b.history.lastFailure)
	}
	if c := cmp.Or(cmp.Compare(a.class, b.class), cmp.Compare(a.Rank, b.Rank)); c != 0 {
		return c
	}
	if a.proven != b.proven {
		return firstIf(a.proven)
	}
	return cmp.Compare(a.slow, b.slow)
}

// firstIf is the result of a comparison: its first operand sorts first if yes.
func firstIf(yes bool) int {
	if yes {
		return -1
	}
	return 1
}

// better returns the paths to which a connection over cur should migrate, best
// first. These are all paths of a preferred class or rank, and the much faster
// paths of the same class and rank. Penalized and flapping paths are left out.
// If cur is not among paths, every path that is not penalized qualifies.
func (s scorer) better(cur Path, paths []Path) []Path {
	i := slices.IndexFunc(paths, func(p Path) bool { return p.Addr == cur.Addr })
	var out []Path
	for _, p := range paths {
		if p.Addr == cur.Addr || s.history(p).isPenalized(s.now, s.penalty) {
			continue
		}
		if i < 0 || s.shouldMigrate(p, paths[i]) {
			out = append(out, p)
		}
	}
	return s.order(out)
}

// shouldMigrate reports whether a connection over cur should migrate to p.
// Failed dials over cur do not count, because the connection itself works.
func (s scorer) shouldMigrate(p, cur Path) bool {
	kind := cmp.Or(cmp.Compare(s.mode.class(p), s.mode.class(cur)), cmp.Compare(p.Rank, cur.Rank))
	h, c := s.history(p), s.history(cur)
	switch {
	case kind > 0 || h.flapsNow(s.now) >= maxFlaps:
		return false
	case kind < 0:
		return true
	case !h.isProven(s.now) || h.rtt == 0 || c.rtt == 0:
		return false
	case s.mode == ModeAuto && p.Local && !cur.Local && h.rtt <= atParLimit(c.rtt):
		return true
	}
	return h.samples >= minSamples && h.rtt+max(h.rtt/faster, fasterLeast) < c.rtt
}
