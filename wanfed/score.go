// SPDX-License-Identifier: MPL-2.0

package wanfed

import (
	"cmp"
	"math"
	"slices"
	"time"
)

const (
	// penalty is how long a hop that failed, or was overtaken by a later one, stays behind the others.
	penalty = time.Minute
	// probedPenalty is the same where a Prober runs: it brings the hop back as soon as it works.
	probedPenalty = 10 * time.Minute
	// provenFor is how long a success counts as proof that the hop works.
	provenFor = 2 * time.Minute
	// flawHalfLife is how long it takes until a failure counts half.
	flawHalfLife = time.Minute
	// flawCost is what one fresh failure adds to a hop's cost: a dial through it that fails costs about a stagger.
	flawCost = 250 * time.Millisecond
	// maxFlaw is up to how much a hop may have failed lately for connections to move to it: twice, not again and again.
	maxFlaw = 2.5
	// rttWeight is the weight of the newest sample in the smoothed RTT: 1/rttWeight.
	rttWeight = 4
	// minSamples is how many samples a hop needs before a connection moves to it for being faster.
	minSamples = 3
	// atPar and atParLeast bound by how much two hops may differ and still count as equally fast: a fourth, or 10 ms.
	atPar, atParLeast = 4, 10 * time.Millisecond
	// faster and fasterLeast are how much faster than its own a hop must be for a connection to move to it: by a half of the
	// hop's own cost, and by 20 ms. What lies between the two limits is hysteresis.
	faster, fasterLeast = 2, 20 * time.Millisecond
)

// evidence is what dials, probes and echoes told about one hop.
type evidence struct {
	good time.Time // last success; zero: never
	bad  time.Time // last failure, or last time a hop that started later won; zero: never

	rtt     time.Duration // smoothed round trip to a server behind the hop; 0: not measured
	samples int           // in rtt
	fails   int           // probes that failed in a row
	flaw    float64       // failures that followed a success, each halved per flawHalfLife, as of flawAt
	flawAt  time.Time
}

// worked notes a success, with the round trip that it measured; 0: none.
func (e *evidence) worked(now time.Time, rtt time.Duration) {
	e.good, e.fails = now, 0
	if rtt <= 0 {
		return
	}
	if e.samples++; e.samples == 1 {
		e.rtt = rtt
		return
	}
	e.rtt += (rtt - e.rtt) / rttWeight
}

// failed notes a failure. That it goes on failing makes a hop no worse, once it works again, than that it failed once.
func (e *evidence) failed(now time.Time) {
	if !e.good.IsZero() && !e.bad.After(e.good) {
		e.flaw, e.flawAt = e.flawNow(now)+1, now
	}
	e.bad = now
}

func (e evidence) flawNow(now time.Time) float64 {
	if e.flaw == 0 {
		return 0
	}
	return e.flaw * math.Exp2(-float64(now.Sub(e.flawAt))/float64(flawHalfLife))
}

// suspect says whether e speaks against trying the hop first: it failed within hold and has not worked since.
func (e evidence) suspect(now time.Time, hold time.Duration) bool {
	return e.bad.After(e.good) && now.Sub(e.bad) < hold
}

// proven says whether the hop worked lately, and nothing has spoken against it since.
func (e evidence) proven(now time.Time) bool {
	return !e.good.IsZero() && !e.bad.After(e.good) && now.Sub(e.good) < provenFor
}

// cost is what using the hop costs: its round trip, and what recent failures may cost again.
func (e evidence) cost(now time.Time) time.Duration {
	return e.rtt + time.Duration(e.flawNow(now)*float64(flawCost))
}

// par is up to which cost a hop counts as equal to one of cost c.
func par(c time.Duration) time.Duration { return c + max(c/atPar, atParLeast) }

// scorer compares hops to one datacenter. It is made for one moment.
type scorer struct {
	mode Mode
	hold time.Duration // see evidence.suspect
	now  time.Time
	of   func(Path) evidence
}

// standing is the key by which hops are ordered.
type standing struct {
	Path
	e       evidence
	suspect bool
	class   int
	proven  bool
	slow    time.Duration // cost of a proven hop that is not at par with the best of its class and rank; else 0
}

// order returns hops in the order to try them. Suspects are behind all others, the one that failed longest ago first. The
// others come by what mode prefers, by rank, and then what worked lately before what is only hoped for. Among those that
// worked, all that are at par with the fastest keep the address book's order, and slower ones follow.
func (s scorer) order(hops []Path) []Path {
	type kind struct{ class, rank int }
	best := map[kind]time.Duration{}
	list := make([]standing, len(hops))
	for i, h := range hops {
		e := s.of(h)
		l := standing{Path: h, e: e, suspect: e.suspect(s.now, s.hold), class: s.mode.class(h), proven: e.proven(s.now)}
		list[i] = l
		k := kind{l.class, h.Rank}
		if c, ok := best[k]; l.proven && e.rtt > 0 && (!ok || e.cost(s.now) < c) {
			best[k] = e.cost(s.now)
		}
	}
	for i, l := range list {
		if c := l.e.cost(s.now); l.proven && c > par(best[kind{l.class, l.Rank}]) {
			list[i].slow = c
		}
	}
	slices.SortStableFunc(list, compareStanding)
	ordered := make([]Path, len(list))
	for i, l := range list {
		ordered[i] = l.Path
	}
	return ordered
}

func compareStanding(a, b standing) int {
	switch {
	case a.suspect != b.suspect:
		return ifTrue(b.suspect)
	case a.suspect:
		return a.e.bad.Compare(b.e.bad)
	}
	if c := cmp.Or(cmp.Compare(a.class, b.class), cmp.Compare(a.Rank, b.Rank)); c != 0 {
		return c
	}
	if a.proven != b.proven {
		return ifTrue(a.proven)
	}
	return cmp.Compare(a.slow, b.slow)
}

// ifTrue is the result of a comparison in which a comes first if yes.
func ifTrue(yes bool) int {
	if yes {
		return -1
	}
	return 1
}

// better returns those of hops to which a connection over cur should move, best first: all that are preferred to it as a
// kind, and those of its kind that are much faster. Nothing that is suspect, or that comes and goes. When cur is not among hops, any other is better.
func (s scorer) better(cur Path, hops []Path) []Path {
	i := slices.IndexFunc(hops, func(h Path) bool { return h.Addr == cur.Addr })
	var out []Path
	for _, h := range hops {
		if h.Addr == cur.Addr || s.of(h).suspect(s.now, s.hold) {
			continue
		}
		if i < 0 || s.beats(h, hops[i]) {
			out = append(out, h)
		}
	}
	return s.order(out)
}

// beats says whether a connection over cur should move to h. That dials through cur failed does not count: the connection works.
func (s scorer) beats(h, cur Path) bool {
	kind := cmp.Or(cmp.Compare(s.mode.class(h), s.mode.class(cur)), cmp.Compare(h.Rank, cur.Rank))
	e, c := s.of(h), s.of(cur)
	switch {
	case kind > 0 || e.flawNow(s.now) >= maxFlaw:
		return false
	case kind < 0:
		return true
	case !e.proven(s.now) || e.rtt == 0 || c.rtt == 0:
		return false
	case s.mode == ModeAuto && h.Local && !cur.Local && e.rtt <= par(c.rtt):
		return true
	}
	return e.samples >= minSamples && e.rtt+max(e.rtt/faster, fasterLeast) < c.rtt
}
