// SPDX-License-Identifier: MPL-2.0

package wanfed

import (
	"cmp"
	"math"
	"slices"
	"time"
)

const (
	// failurePenalty is the time for which a failed path is penalized: dialed
	// after the other paths. A path also fails if a path that was dialed later
	// connects first.
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
	// migrate to the path. Two recent failures stay below it, three do not.
	maxFlaps = 2.5
	// The newest sample has the weight 1/rttWeight in the smoothed round trip.
	rttWeight = 4
	// minSamples is the number of round trips that must be measured over a path
	// before a connection migrates to the path because of its speed.
	minSamples = 3
	// Two paths are at par if the slower cost exceeds the faster cost by at
	// most 1/atPar of the faster cost, or by at most atParLeast.
	atPar, atParLeast = 4, 10 * time.Millisecond
	// A connection migrates to a path whose round trip is shorter by at least
	// 1/faster of that path's round trip, and by at least fasterLeast. The
	// difference from atPar is hysteresis.
	faster, fasterLeast = 2, 20 * time.Millisecond
)

// pathHistory contains the measurements of dials, probes and echoes for one
// path.
type pathHistory struct {
	lastSuccess time.Time // zero: never
	lastFailure time.Time // see failurePenalty; zero: never

	rtt          time.Duration // smoothed round trip to a server behind the path; 0: not measured
	samples      int           // number of round trips in rtt
	failedProbes int           // consecutive
	flaps        float64       // failures after a success, decayed by flapHalfLife until flapsAt
	flapsAt      time.Time
}

// recordSuccess records a success and the round trip rtt. It ignores rtt if rtt
// is not positive.
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

// recordFailure records a failure. Consecutive failures count as one flap.
func (h *pathHistory) recordFailure(now time.Time) {
	if !h.lastSuccess.IsZero() && !h.hasFailed() {
		h.flaps, h.flapsAt = h.flapsNow(now)+1, now
	}
	h.lastFailure = now
}

// hasFailed reports whether the last event was a failure.
func (h *pathHistory) hasFailed() bool { return h.lastFailure.After(h.lastSuccess) }

// flapsNow returns the flaps, decayed until now.
func (h pathHistory) flapsNow(now time.Time) float64 {
	if h.flaps == 0 {
		return 0
	}
	return h.flaps * math.Exp2(-float64(now.Sub(h.flapsAt))/float64(flapHalfLife))
}

// isPenalized reports whether the path failed during the last penalty and has
// not worked since.
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

// atParLimit returns the highest cost at par with c.
func atParLimit(c time.Duration) time.Duration { return c + max(c/atPar, atParLeast) }

// scorer compares the paths to one datacenter at one moment.
type scorer struct {
	mode    Mode
	penalty time.Duration // see pathHistory.isPenalized
	now     time.Time
	history func(Path) pathHistory
}

// order returns paths in the order to dial them. Penalized paths come last, the
// oldest failure first. The other paths are ordered by the class of the mode,
// then by rank, then proven before unproven. Proven paths at par with the
// fastest proven path of their class and rank keep the order of the address
// book. Slower proven paths follow, ordered by cost.
func (s scorer) order(paths []Path) []Path {
	type kind struct{ class, rank int }
	lowest := map[kind]time.Duration{} // cost of the proven paths of a kind
	for _, p := range paths {
		k, h := kind{s.mode.class(p), p.Rank}, s.history(p)
		if c, ok := lowest[k]; h.isProven(s.now) && h.rtt > 0 && (!ok || h.cost(s.now) < c) {
			lowest[k] = h.cost(s.now)
		}
	}
	type keyedPath struct {
		Path
		key [5]int64 // compared number by number; the lowest key is dialed first
	}
	list := make([]keyedPath, len(paths))
	for i, p := range paths {
		k, h := kind{s.mode.class(p), p.Rank}, s.history(p)
		key := [5]int64{0, int64(k.class), int64(k.rank), 1, 0}
		switch c := h.cost(s.now); {
		case h.isPenalized(s.now, s.penalty):
			key = [5]int64{1, int64(h.lastFailure.Sub(s.now))}
		case h.isProven(s.now) && c > atParLimit(lowest[k]):
			key[3], key[4] = 0, int64(c)
		case h.isProven(s.now):
			key[3] = 0
		}
		list[i] = keyedPath{p, key}
	}
	slices.SortStableFunc(list, func(a, b keyedPath) int { return slices.Compare(a.key[:], b.key[:]) })
	ordered := make([]Path, len(list))
	for i, p := range list {
		ordered[i] = p.Path
	}
	return ordered
}

// better returns the paths to which a connection over cur should migrate, best
// first. It omits penalized paths. If paths lists cur, better also omits the
// paths for which shouldMigrate returns false.
func (s scorer) better(cur Path, paths []Path) []Path {
	i := slices.IndexFunc(paths, func(p Path) bool { return p.Addr == cur.Addr })
	return s.order(slices.DeleteFunc(slices.Clone(paths), func(p Path) bool {
		return p.Addr == cur.Addr || s.history(p).isPenalized(s.now, s.penalty) ||
			i >= 0 && !s.shouldMigrate(p, paths[i])
	}))
}

// shouldMigrate reports whether a connection over cur should migrate to p: p
// has a preferred class or rank, or the same class and rank and is much faster.
// No connection migrates to a flapping path. Failed dials over cur do not
// count, because the connection itself works.
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
