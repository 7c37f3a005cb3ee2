// SPDX-License-Identifier: MPL-2.0

package main

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/wanfed/wanfed/bench/gatewaybench/load"
)

// row is one measurement, made with each contender.
type row struct {
	name    string
	spec    load.Spec
	figures []figure
}

// figure is one figure of a row.
type figure struct {
	name           string
	goal           goal
	higherIsBetter bool // false: lower values are better
	noComparison   bool // not compared with peers
}

// goal is the bound of a subject's figure: a minimum if higher values are
// better, otherwise a maximum.
type goal struct {
	reference string // a constant below; empty: no goal
	// bound is a factor of the figure of the reference. For absoluteGoal it is
	// the value of the bound.
	bound float64
}

const (
	bestPeerGoal    = "best"     // the best of all peers
	bestHAProxyGoal = "haproxy"  // the best of the peers whose names start with haproxy
	absoluteGoal    = "absolute" // no peer
)

func (f figure) goalText() string {
	sign := "≤"
	if f.higherIsBetter {
		sign = "≥"
	}
	switch f.goal.reference {
	case "":
		return ""
	case absoluteGoal:
		return sign + " " + number(f.goal.bound)
	}
	return fmt.Sprintf("%s %.1fx %s", sign, f.goal.bound, f.goal.reference)
}

var matchBest = goal{bestPeerGoal, 1} // at least as good as the best peer

// updateRoutes is the number of additional routes in the file of row update.
// updatePerSecond is how many times per second that file changes.
const (
	updateRoutes    = 100
	updatePerSecond = 100
	updatesFigure   = "updates/s"
	drainTime       = 2 * time.Second // the default of the gateway
	addedP50        = "added p50 µs"
)

// timing has the durations and sizes of runs.
type timing struct {
	warm, measure, settle      time.Duration
	idle, stalls, restartConns int // numbers of connections
}

// rows returns all rows.
func rows(t timing) []row {
	spec := func(kind load.Kind, conns int) load.Spec {
		return load.Spec{
			Kind: kind, Conns: conns, Warmup: t.warm, Duration: t.measure, Settle: t.settle,
			HelloTimeout: helloDuration(),
		}
	}
	var all []row
	for _, tls := range []bool{false, true} {
		for _, n := range []int{1, 8, 64} {
			s := spec(load.Bulk, n)
			s.TLS = tls
			all = append(all, row{fmt.Sprintf("bulk/%s/%d", transport(tls), n), s, []figure{
				{name: load.MBPerS, higherIsBetter: true, goal: matchBest}, {name: load.CPUPerGB, goal: matchBest},
			}})
		}
	}
	for _, tls := range []bool{false, true} {
		for _, n := range []int{16, 128} {
			s := spec(load.Connect, n)
			s.TLS = tls
			all = append(all, row{fmt.Sprintf("connect/%s/%d", transport(tls), n), s, []figure{
				{name: load.ConnPerS, higherIsBetter: true, goal: matchBest}, {name: load.CPUPerConn, goal: matchBest},
				{name: load.P50}, {name: load.P99, goal: matchBest},
			}})
		}
	}
	for _, p := range []struct {
		name     string
		conns    int
		interval time.Duration
	}{{"closed", 1, 0}, {"closed", 64, 0}, {"paced", 1, 2 * time.Millisecond}, {"paced", 64, 20 * time.Millisecond}} {
		s := spec(load.Ping, p.conns)
		s.Interval = p.interval
		all = append(all, row{fmt.Sprintf("ping/%s/%d", p.name, p.conns), s, []figure{
			{name: load.P50, goal: matchBest}, {name: load.P99, goal: matchBest}, {name: addedP50},
			{name: load.CPUPerMsg},
		}})
	}
	return append(all, t.manyConnRows(spec)...)
}

// manyConnRows returns the rows with many connections, and those that change
// the proxy while it is in use.
func (t timing) manyConnRows(spec func(load.Kind, int) load.Spec) []row {
	stall := spec(load.Stall, t.stalls)
	stall.Rate, stall.Duration = 500, 2*t.measure // enough connections for a p99
	update := spec(load.Update, 64)
	update.Rate, update.Duration, update.Interval = 500, 2*t.measure, 20*time.Millisecond
	hotRestart := update
	hotRestart.Kind = load.HotRestart
	hotRestart.Rate = max(1, int(float64(t.restartConns)/hotRestart.Duration.Seconds()))
	drain := update
	drain.Kind, drain.Duration, drain.DrainTime = load.Drain, t.measure, drainTime
	return []row{
		{fmt.Sprintf("idle/%d", t.idle), spec(load.Idle, t.idle), []figure{
			{name: load.RSSPerConn, goal: goal{bestHAProxyGoal, 0.2}}, {name: load.FDsPerConn},
			{name: load.Held, higherIsBetter: true, noComparison: true, goal: goal{absoluteGoal, float64(t.idle)}},
		}},
		{fmt.Sprintf("stall/%d", t.stalls), stall, []figure{
			{name: load.RSSPerConn, goal: goal{bestHAProxyGoal, 0.1}}, {name: load.P99},
			{name: load.P99Ratio, noComparison: true, goal: goal{absoluteGoal, 1.2}},
			{name: load.Lost, goal: goal{absoluteGoal, 0}, noComparison: true},
			{name: load.Held, higherIsBetter: true, noComparison: true},
			{name: load.GoneAfter, noComparison: true},
			{name: load.Left, goal: goal{absoluteGoal, 0}, noComparison: true},
		}},
		{"update/100", update, []figure{
			{name: load.P99Ratio, noComparison: true, goal: goal{absoluteGoal, 1.1}},
			{name: load.P99, noComparison: true},
			{name: load.Lost, goal: goal{absoluteGoal, 0}, noComparison: true},
			{name: load.Sent, noComparison: true}, {name: updatesFigure, noComparison: true},
		}},
		{fmt.Sprintf("hot-restart/%d", t.restartConns), hotRestart, []figure{
			{name: load.Lost, goal: goal{absoluteGoal, 0}, noComparison: true}, {name: load.Sent, noComparison: true},
			{name: load.HotRestarts, noComparison: true},
			{name: load.P99, noComparison: true}, {name: load.P99Ratio, noComparison: true},
		}},
		{"drain/500", drain, []figure{
			{name: load.Lost, goal: goal{absoluteGoal, 0}, noComparison: true}, {name: load.Sent, noComparison: true},
			{name: load.Refused, noComparison: true},
			{name: load.GoneAfter, noComparison: true},
			{name: load.Left, goal: goal{absoluteGoal, 0}, noComparison: true},
		}},
	}
}

func transport(tls bool) string {
	if tls {
		return "tls"
	}
	return "raw"
}

func helloDuration() time.Duration {
	d, err := time.ParseDuration(helloTimeout)
	if err != nil {
		panic(err) // helloTimeout is a constant
	}
	return d
}

// selectRows returns the rows whose names start with one of prefixes, which
// commas separate. No prefixes select all rows.
func selectRows(all []row, prefixes string) ([]row, error) {
	if prefixes == "" {
		return all, nil
	}
	var selected []row
	list := strings.Split(prefixes, ",")
	for _, r := range all {
		if slices.ContainsFunc(list, func(p string) bool { return strings.HasPrefix(r.name, p) }) {
			selected = append(selected, r)
		}
	}
	if len(selected) == 0 {
		names := make([]string, len(all))
		for i, r := range all {
			names[i] = r.name
		}
		return nil, fmt.Errorf("no row starts with %s; rows are: %s", prefixes, strings.Join(names, " "))
	}
	return selected, nil
}

// endsProxy reports whether the process of the proxy exits during the
// measurement.
func (r row) endsProxy() bool { return r.spec.Kind == load.HotRestart || r.spec.Kind == load.Drain }

// appliesTo reports whether the row can measure a contender.
func (r row) appliesTo(c contender) bool {
	switch r.spec.Kind {
	case load.Update, load.HotRestart, load.Drain:
		return c.updatable()
	case load.Idle, load.Stall:
		return c.role != direct && c.addr == ""
	}
	return true
}
