// SPDX-License-Identifier: MPL-2.0

package gateway

import (
	"strings"
	"sync/atomic"
	"time"
)

// RouteClass is what connections are told apart by in statistics: there are few, however many names are routed.
type RouteClass uint8

// The classes of routes.
const (
	RouteExact    RouteClass = iota // its Match is one name
	RouteWildcard                   // its Match is "*.suffix"
	RouteNone                       // no route: the name is not known, or there is none
	routeClasses
)

// RouteClasses lists every class.
var RouteClasses = [routeClasses]RouteClass{RouteExact, RouteWildcard, RouteNone}

// String gives the class as metrics show it.
func (c RouteClass) String() string { return [routeClasses]string{"exact", "wildcard", "none"}[c] }

// class is t's class; t may be nil.
func (t *target) class() RouteClass {
	switch {
	case t == nil:
		return RouteNone
	case strings.HasPrefix(t.Match, "*."):
		return RouteWildcard
	}
	return RouteExact
}

// HistogramBounds are the upper bounds of a Histogram's buckets, but for the last, which has none.
var HistogramBounds = [...]time.Duration{
	500 * time.Microsecond, time.Millisecond, 2500 * time.Microsecond, 5 * time.Millisecond, 10 * time.Millisecond,
	25 * time.Millisecond, 50 * time.Millisecond, 100 * time.Millisecond, 250 * time.Millisecond, 500 * time.Millisecond,
	time.Second, 2500 * time.Millisecond, 5 * time.Second, 10 * time.Second,
}

// Histogram counts durations by size.
type Histogram struct {
	Count uint64
	Sum   time.Duration
	// Buckets has for each of HistogramBounds how many durations were up to it.
	Buckets [len(HistogramBounds)]uint64
}

// histogram is a Histogram that is being filled, by anyone at any time.
type histogram struct {
	sum    atomic.Int64 // nanoseconds
	counts [len(HistogramBounds) + 1]atomic.Uint64
}

func (h *histogram) note(d time.Duration) {
	i := 0
	for i < len(HistogramBounds) && d > HistogramBounds[i] {
		i++
	}
	h.counts[i].Add(1)
	h.sum.Add(int64(d))
}

// read does not read all at one instant.
func (h *histogram) read() Histogram {
	out := Histogram{Sum: time.Duration(h.sum.Load())}
	for i := range h.counts {
		out.Count += h.counts[i].Load()
		if i < len(out.Buckets) {
			out.Buckets[i] = out.Count
		}
	}
	return out
}

// noteHello notes how long after its accept a connection had sent its whole hello, and whether to is a route for it.
func (s *Listener) noteHello(to *target, took time.Duration) { s.hellos[to.class()].note(took) }

// noteDial notes how long after its hello a connection had an upstream.
func (s *Listener) noteDial(to *target, took time.Duration) { s.dials[to.class()].note(took) }

func readAll(of *[routeClasses]histogram) map[RouteClass]Histogram {
	out := make(map[RouteClass]Histogram, routeClasses)
	for _, c := range RouteClasses {
		out[c] = of[c].read()
	}
	return out
}
