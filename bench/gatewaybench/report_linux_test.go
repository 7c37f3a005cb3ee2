// SPDX-License-Identifier: MPL-2.0

package main

import (
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/wanfed/wanfed/bench/gatewaybench/load"
)

// sampleRuns returns a benchmark of three rounds with known figures.
func sampleRuns() (bench, []run) {
	b := bench{rounds: 3, rows: []row{{name: "r", figures: []figure{
		{name: load.MBPerS, higherIsBetter: true, goal: matchBest},
		{name: load.RSSPerConn, goal: goal{bestHAProxyGoal, 0.2}},
		{name: load.Lost, noComparison: true, goal: goal{absoluteGoal, 0}},
	}}}, contenders: []contender{
		{name: "ours"}, {name: "haproxy", role: peer}, {name: "haproxy-x", role: peer}, {name: "other", role: peer},
	}}
	of := map[string][3]load.Figures{
		"ours": {
			{"MB/s": 90, "RSS KB/conn": 1, "lost": 0}, {"MB/s": 300, "RSS KB/conn": 1, "lost": 0},
			{"MB/s": 95, "RSS KB/conn": 1, "lost": 0},
		},
		"haproxy": {{"MB/s": 100, "RSS KB/conn": 3}, {"MB/s": 100, "RSS KB/conn": 3},
			{"MB/s": 100, "RSS KB/conn": 3}},
		"haproxy-x": {{"MB/s": 50, "RSS KB/conn": 4}, {"MB/s": 900, "RSS KB/conn": 4}, {"MB/s": 40, "RSS KB/conn": 4}},
		"other": {{"MB/s": 10, "RSS KB/conn": 0.1}, {"MB/s": 10, "RSS KB/conn": 0.1},
			{"MB/s": 10, "RSS KB/conn": 0.1}},
	}
	var runs []run
	for name, rounds := range of {
		for i, f := range rounds {
			runs = append(runs, run{row: "r", contender: name, round: i, figures: f})
		}
	}
	return b, append(runs, run{row: "r", contender: "other", round: 1, err: errors.New("proxy crashed")})
}

func TestNewReport(t *testing.T) {
	b, runs := sampleRuns()
	rep := newReport("here", b, runs[:len(runs)-1])
	for i, want := range []struct {
		median float64
		best   string
		ratio  float64
		met    bool
	}{
		{95, "haproxy", 0.95, false}, // the best peer by its median
		{1, "haproxy", 1.0 / 3, false},
		{0, "", 0, true},
	} {
		l := rep.Lines[i]
		median, v := l.Values["ours"].Median, l.Verdicts["ours"]
		if median != want.median || v.Best != want.best || v.Ratio != want.ratio || v.Met == nil || *v.Met != want.met {
			t.Errorf("newReport(): figure %s = median %v, verdict %+v, want %+v", l.Figure, median, v, want)
		}
	}
}

func TestReport_WriteTable(t *testing.T) {
	b, runs := sampleRuns()
	var out strings.Builder
	if err := newReport("here", b, runs).writeTable(&out); err != nil {
		t.Fatal(err)
	}
	const want = `here; medians of 3 rounds

| row | figure      | goal           | ours |  by best |    best | haproxy | haproxy-x | other | others |
|-----|-------------|----------------|-----:|---------:|--------:|--------:|----------:|------:|-------:|
| r   | MB/s        | ≥ 1.0x best    |   95 | 0.95x NO | haproxy |     100 |        50 |    10 |      0 |
|     | RSS KB/conn | ≤ 0.2x haproxy |    1 | 0.33x NO | haproxy |       3 |         4 |   0.1 |      0 |
|     | lost        | ≤ 0            |    0 |      yes |         |       - |         - |     - |      0 |

failed: r other round 2: proxy crashed
`
	if out.String() != want {
		t.Errorf("writeTable() =\n%s\nwant\n%s", out.String(), want)
	}
}

func TestPlaceholders_Expand(t *testing.T) {
	p := placeholders{dir: "/d", listen: "127.0.0.1:1", raw: "127.0.0.1:2", tls: "127.0.0.1:3", xdsPort: "4444"}
	for _, c := range peers() {
		for name, text := range c.files {
			expanded := p.expand(text)
			all := []string{p.listen, p.raw, p.tls, load.RawName, helloTimeout}
			if c.xds { // the file has only the address of the xDS server, which sends all else
				all = []string{p.xdsPort}
			}
			for _, want := range all {
				if !strings.Contains(expanded, want) {
					t.Errorf("%s of %s = %q, want it to contain %s", name, c.name, expanded, want)
				}
			}
			contains := func(name string) bool { return strings.Contains(expanded, name) }
			if contains("{raw") || contains("{tls") || contains("{listen") || contains("{xds") {
				t.Errorf("%s of %s = %q, want no placeholders", name, c.name, expanded)
			}
		}
	}
}

func TestByRound_Quiet(t *testing.T) {
	b := byRound{}
	for round, others := range []float64{0.1, 1, 0.5, 0.4, 0.2} {
		b[round] = load.Figures{load.Others: others, load.P50: float64(round)}
	}
	for _, test := range []struct {
		noisy float64
		want  string
	}{
		{0, "[0 3 4]"}, // at least the less disturbed half
		{0.5, "[0 2 3 4]"},
		{1, "[0 1 2 3 4]"},
	} {
		if got := fmt.Sprint(b.quiet(test.noisy).series(load.P50)); got != test.want {
			t.Errorf("quiet(%v) = rounds %s, want %s", test.noisy, got, test.want)
		}
	}
}
