// SPDX-License-Identifier: MPL-2.0

package main

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/wanfed/wanfed/bench/gatewaybench/load"
)

// report is the result of a benchmark.
type report struct {
	Machine string `json:"machine"`
	Rounds  int    `json:"rounds"`
	// Contenders are the names of the subjects, then of the peers, then of the
	// direct connection.
	Contenders []string `json:"contenders"`
	Subjects   []string `json:"subjects"`
	Lines      []line   `json:"lines"`
	// Failed describes the runs that failed.
	Failed []string `json:"failed,omitempty"`
}

// line is one figure of one row.
type line struct {
	Row            string `json:"row"`
	Figure         string `json:"figure"`
	Goal           string `json:"goal,omitempty"`
	HigherIsBetter bool   `json:"more_is_better"`
	// Values are the results by contender.
	Values map[string]value `json:"of"`
	// Verdicts are the comparisons by subject.
	Verdicts map[string]verdict `json:"verdicts,omitempty"`
	// Others is the median number of cores that other processes used during the
	// runs.
	Others float64 `json:"others"`
}

// value is the result of one contender. Rounds are the values of the rounds
// that count, and Median is their median.
type value struct {
	Median float64   `json:"median"`
	Rounds []float64 `json:"rounds"`
}

// verdict compares a subject with the best peer.
type verdict struct {
	// Best is the peer with the best median. Ratio is the median of the subject
	// divided by that of the peer.
	Best  string  `json:"best,omitempty"`
	Ratio float64 `json:"ratio,omitempty"`
	// Met reports whether the goal is met; nil without a goal or a peer.
	Met *bool `json:"met,omitempty"`
}

// byRound maps rounds to the figures of one row and one contender.
type byRound map[int]load.Figures

// series returns the values of a figure in the order of the rounds.
func (b byRound) series(name string) []float64 {
	var s []float64
	for _, round := range slices.Sorted(maps.Keys(b)) {
		if v, ok := b[round][name]; ok {
			s = append(s, v)
		}
	}
	return s
}

// quiet returns the rounds in which other processes used at most noisy cores.
// It returns at least the less disturbed half of the rounds, rounded up.
func (b byRound) quiet(noisy float64) byRound {
	rounds := slices.SortedFunc(maps.Keys(b), func(x, y int) int {
		return cmp.Compare(b[x][load.Others], b[y][load.Others])
	})
	kept := byRound{}
	for i, round := range rounds {
		if i < (len(rounds)+1)/2 || b[round][load.Others] <= noisy {
			kept[round] = b[round]
		}
	}
	return kept
}

// newReport computes medians and verdicts.
func newReport(machine string, b bench, runs []run) report {
	rep := report{Machine: machine, Rounds: b.rounds}
	found := map[string]map[string]byRound{} // by row and contender
	for _, r := range runs {
		if r.err != nil {
			rep.Failed = append(rep.Failed, fmt.Sprintf("%s %s round %d: %v", r.row, r.contender, r.round+1, r.err))
			if r.figures == nil {
				continue
			}
		}
		if found[r.row] == nil {
			found[r.row] = map[string]byRound{}
		}
		if found[r.row][r.contender] == nil {
			found[r.row][r.contender] = byRound{}
		}
		found[r.row][r.contender][r.round] = r.figures
	}
	for _, c := range b.contenders {
		rep.Contenders = append(rep.Contenders, c.name)
		if c.role == subject {
			rep.Subjects = append(rep.Subjects, c.name)
		}
	}
	for _, r := range b.rows {
		setAddedLatency(found[r.name])
		for name, of := range found[r.name] {
			found[r.name][name] = of.quiet(b.noiseLimit)
		}
		for _, f := range r.figures {
			if l, ok := newLine(b.contenders, r, f, found[r.name]); ok {
				rep.Lines = append(rep.Lines, l)
			}
		}
	}
	return rep
}

// setAddedLatency sets the figure addedP50: the p50 of each contender without
// that of a direct connection.
func setAddedLatency(found map[string]byRound) {
	for round, without := range found[directName] {
		for _, of := range found {
			if f, ok := of[round]; ok {
				f[addedP50] = f[load.P50] - without[load.P50]
			}
		}
	}
}

func newLine(cs []contender, r row, f figure, found map[string]byRound) (line, bool) {
	l := line{
		Row: r.name, Figure: f.name, Goal: f.goalText(), HigherIsBetter: f.higherIsBetter,
		Values: map[string]value{}, Verdicts: map[string]verdict{},
	}
	var others []float64
	for _, c := range cs {
		if s := found[c.name].series(f.name); len(s) > 0 {
			l.Values[c.name] = value{Median: median(s), Rounds: s}
			others = append(others, found[c.name].series(load.Others)...)
		}
	}
	l.Others = median(others)
	best := bestPeer(cs, f, l.Values)
	for _, c := range cs {
		if v, ok := l.Values[c.name]; ok && c.role == subject {
			l.Verdicts[c.name] = f.judge(v.Median, best, l.Values[best].Median)
		}
	}
	return l, len(l.Values) > 0
}

// bestPeer returns the name of the peer that a figure is compared with; empty
// if there is none.
func bestPeer(cs []contender, f figure, of map[string]value) string {
	var name string
	for _, c := range cs {
		v, ok := of[c.name]
		if !ok || c.role != peer || f.noComparison ||
			f.goal.reference == bestHAProxyGoal && !strings.HasPrefix(c.name, bestHAProxyGoal) {
			continue
		}
		if name == "" || v.Median > of[name].Median == f.higherIsBetter {
			name = c.name
		}
	}
	return name
}

// judge compares a subject's figure with that of the best peer.
func (f figure) judge(value float64, peer string, peerValue float64) verdict {
	var v verdict
	x := value
	if f.goal.reference != absoluteGoal {
		if peerValue <= 0 {
			return v
		}
		x = value / peerValue
		v = verdict{Best: peer, Ratio: x}
	}
	if f.goal.reference != "" {
		met := x <= f.goal.bound
		if f.higherIsBetter {
			met = x >= f.goal.bound
		}
		v.Met = &met
	}
	return v
}

func median(x []float64) float64 {
	s := slices.Sorted(slices.Values(x))
	n := len(s)
	switch {
	case n == 0:
		return 0
	case n%2 == 1:
		return s[n/2]
	}
	return (s[n/2-1] + s[n/2]) / 2
}
