// SPDX-License-Identifier: MPL-2.0

package wanfed

import (
	"strings"
	"testing"
	"time"
)

// parsePaths parses paths. A path is one word: an address of one letter, then o
// for a local gateway, c for RankCritical, r for RankCached.
func parsePaths(words string) []Path {
	var paths []Path
	for w := range strings.FieldsSeq(words) {
		p := Path{Addr: w[:1], Local: strings.Contains(w[1:], "o")}
		switch {
		case strings.Contains(w[1:], "c"):
			p.Rank = RankCritical
		case strings.Contains(w[1:], "r"):
			p.Rank = RankCached
		}
		paths = append(paths, p)
	}
	return paths
}

// letters returns the addresses of paths as one word.
func letters(paths []Path) (s string) {
	for _, p := range paths {
		s += p.Addr
	}
	return s
}

var scoreNow = time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)

func beforeNow(d time.Duration) time.Time { return scoreNow.Add(-d) }

// provenPath is the history of a path that works, with a round trip in
// milliseconds.
func provenPath(ms int) pathHistory {
	return pathHistory{lastSuccess: beforeNow(time.Second), rtt: time.Duration(ms) * time.Millisecond,
		samples: minSamples}
}

// order returns paths in the order of their preference.
func TestScorer_Order(t *testing.T) {
	type known = map[string]pathHistory // by address
	flapped := provenPath(40)
	flapped.flaps, flapped.flapsAt = 1, beforeNow(time.Second)
	flappedLongAgo := flapped
	flappedLongAgo.flapsAt = beforeNow(10 * time.Minute)
	for _, tt := range []struct {
		name  string
		mode  Mode
		book  string // see parsePaths
		known known
		want  string
	}{
		{"no history: order of the address book", ModeAuto, "a b c", nil, "abc"},
		{"proven before unproven", ModeLocal, "a b c", known{"c": provenPath(0)}, "cab"},
		{"an old success is unproven", ModeLocal, "a b c",
			known{"c": {lastSuccess: beforeNow(provenPeriod)}}, "abc"},
		{"a failed path goes last", ModeLocal, "a b c", known{"a": {lastFailure: beforeNow(time.Second)}}, "bca"},
		{"failed, then worked", ModeLocal, "a b c",
			known{"a": {lastFailure: beforeNow(2 * time.Second), lastSuccess: beforeNow(time.Second)}}, "abc"},
		{"worked, then failed", ModeLocal, "a b c",
			known{"a": {lastSuccess: beforeNow(2 * time.Second), lastFailure: beforeNow(time.Second)}}, "bca"},
		{"an old failure does not count", ModeLocal, "a b c",
			known{"a": {lastFailure: beforeNow(failurePenalty)}}, "abc"},
		{"a failure just within the penalty", ModeLocal, "a b",
			known{"a": {lastFailure: beforeNow(failurePenalty - 1)}}, "ba"},
		{"all failed: the oldest failure first", ModeLocal, "a b c",
			known{"a": {lastFailure: beforeNow(time.Second)}, "b": {lastFailure: beforeNow(3 * time.Second)},
				"c": {lastFailure: beforeNow(2 * time.Second)}}, "bca"},
		{"two failed at once: order of the address book", ModeLocal, "a b c",
			known{"a": {lastFailure: beforeNow(1)}, "b": {lastFailure: beforeNow(1)}}, "cab"},
		{"no paths", ModeLocal, "", nil, ""},

		{"a little faster changes nothing", ModeLocal, "a b", known{"a": provenPath(50), "b": provenPath(40)}, "ab"},
		{"a few milliseconds change nothing", ModeLocal, "a b",
			known{"a": provenPath(10), "b": provenPath(1)}, "ab"},
		{"much faster goes first", ModeLocal, "a b c",
			known{"a": provenPath(52), "b": provenPath(40), "c": provenPath(40)}, "bca"},
		{"slow ones by cost", ModeLocal, "a b c",
			known{"a": provenPath(300), "b": provenPath(200), "c": provenPath(40)}, "cba"},
		{"slow before untested", ModeLocal, "a b c", known{"b": provenPath(400), "c": provenPath(40)}, "cba"},
		{"a flap counts after recovery", ModeLocal, "a b", known{"a": flapped, "b": provenPath(40)}, "ba"},
		{"an old flap does not count", ModeLocal, "a b", known{"a": flappedLongAgo, "b": provenPath(40)}, "ab"},

		{"local: local gateway first, however slow", ModeLocal, "ao b co",
			known{"a": provenPath(200), "b": provenPath(40)}, "acb"},
		{"local: critical local gateway before remote", ModeLocal, "ao boc c dc er", nil, "abcde"},
		{"local: local gateway failed", ModeLocal, "ao b", known{"a": {lastFailure: beforeNow(1)}}, "ba"},
		{"remote: remote first, however slow", ModeRemote, "ao b cc d",
			known{"a": provenPath(1), "b": provenPath(400)}, "bdca"},
		{"remote: remote failed", ModeRemote, "ao b", known{"b": {lastFailure: beforeNow(1)}}, "ab"},
		{"auto: a tie goes to the local gateway", ModeAuto, "ao b",
			known{"a": provenPath(48), "b": provenPath(40)}, "ab"},
		{"auto: the much faster wins", ModeAuto, "ao b", known{"a": provenPath(60), "b": provenPath(40)}, "ba"},
		{"auto: healthy before critical", ModeAuto, "ao boc c dc er", known{"b": provenPath(1)}, "acbde"},
		{"auto: proven before unproven", ModeAuto, "ao b", known{"b": provenPath(40)}, "ba"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			s := scorer{tt.mode, failurePenalty, scoreNow, func(p Path) pathHistory { return tt.known[p.Addr] }}
			if got := letters(s.order(parsePaths(tt.book))); got != tt.want {
				t.Errorf("order(%q) = %q, want %q", tt.book, got, tt.want)
			}
		})
	}
}

// better returns the paths to which a connection over cur migrates.
func TestScorer_Better(t *testing.T) {
	type known = map[string]pathHistory // by address
	flappedOnce, flapping := provenPath(40), provenPath(40)
	flappedOnce.flaps, flappedOnce.flapsAt = 1, beforeNow(time.Second)
	flapping.flaps, flapping.flapsAt = 3, beforeNow(time.Second)
	oneSample := provenPath(40)
	oneSample.samples = 1
	for _, tt := range []struct {
		name  string
		mode  Mode
		cur   string
		book  string // see parsePaths
		known known
		want  string
	}{
		{"equal", ModeLocal, "b", "a b c", nil, ""},
		{"a little faster", ModeLocal, "b", "a b", known{"a": provenPath(40), "b": provenPath(58)}, ""},
		{"a few milliseconds faster", ModeLocal, "b", "a b", known{"a": provenPath(1), "b": provenPath(20)}, ""},
		{"much faster", ModeLocal, "b", "a b", known{"a": provenPath(40), "b": provenPath(62)}, "a"},
		{"much faster in one sample", ModeLocal, "b", "a b", known{"a": oneSample, "b": provenPath(400)}, ""},
		{"fast long ago", ModeLocal, "b", "a b",
			known{"a": {lastSuccess: beforeNow(time.Hour), rtt: 1, samples: 9}, "b": provenPath(400)}, ""},
		{"untested local gateway", ModeLocal, "b", "ao b", known{"b": provenPath(1)}, "a"},
		{"local gateway that failed once and works again", ModeLocal, "b", "ao b",
			known{"a": flappedOnce, "b": provenPath(1)}, "a"},
		{"faster, while dials over the current path fail", ModeLocal, "b", "a b",
			known{"a": provenPath(40), "b": flapping}, ""},
		{"flapping local gateway", ModeLocal, "b", "ao b", known{"a": flapping, "b": provenPath(1)}, ""},
		{"failed local gateway", ModeLocal, "b", "ao b", known{"a": {lastFailure: beforeNow(1)}}, ""},
		{"faster path of another class", ModeLocal, "a", "ao b",
			known{"a": provenPath(400), "b": provenPath(1)}, ""},
		{"from critical to healthy", ModeLocal, "a", "aoc bo c", nil, "b"},
		{"from cached to listed", ModeLocal, "b", "a br", nil, "a"},
		{"remote", ModeRemote, "a", "ao b", nil, "b"},
		{"auto: local gateway at par", ModeAuto, "b", "ao b", known{"a": provenPath(45), "b": provenPath(40)}, "a"},
		{"auto: untested local gateway", ModeAuto, "b", "ao b", known{"b": provenPath(40)}, ""},
		{"auto: slower local gateway", ModeAuto, "b", "ao b", known{"a": provenPath(55), "b": provenPath(40)}, ""},
		{"auto: remote gateway hardly faster", ModeAuto, "a", "ao b",
			known{"a": provenPath(55), "b": provenPath(40)}, ""},
		{"auto: remote gateway much faster", ModeAuto, "a", "ao b",
			known{"a": provenPath(70), "b": provenPath(40)}, "b"},
		{"current path left the address book", ModeLocal, "x", "a b c",
			known{"a": {lastFailure: beforeNow(1)}, "c": provenPath(1)}, "cb"},
		{"no paths", ModeLocal, "x", "", nil, ""},
	} {
		t.Run(tt.name, func(t *testing.T) {
			s := scorer{tt.mode, failurePenalty, scoreNow, func(p Path) pathHistory { return tt.known[p.Addr] }}
			if got := letters(s.better(Path{Addr: tt.cur}, parsePaths(tt.book))); got != tt.want {
				t.Errorf("better(%q, %q) = %q, want %q", tt.cur, tt.book, got, tt.want)
			}
		})
	}
}

// For any two round trips, a connection that has migrated from one path to
// another does not migrate back.
func TestScorer_BetterDoesNotFlap(t *testing.T) {
	book := parsePaths("ao b")
	for _, mode := range []Mode{ModeLocal, ModeRemote, ModeAuto} {
		for a := 1; a < 400; a += 3 {
			for b := 1; b < 400; b += 3 {
				s := scorer{mode, failurePenalty, scoreNow, func(p Path) pathHistory {
					return map[string]pathHistory{"a": provenPath(a), "b": provenPath(b)}[p.Addr]
				}}
				if fromA, fromB := s.better(book[0], book), s.better(book[1], book); len(fromA) > 0 && len(fromB) > 0 {
					t.Fatalf("mode %s, a %d ms, b %d ms: better(a) = %v, better(b) = %v, want one of them empty",
						mode, a, b, fromA, fromB)
				}
			}
		}
	}
}

// pathHistory smooths round trips and counts flaps.
func TestPathHistory(t *testing.T) {
	var h pathHistory
	h.recordSuccess(beforeNow(10*time.Second), 40*time.Millisecond)
	h.recordSuccess(beforeNow(9*time.Second), 80*time.Millisecond)
	if h.rtt != 50*time.Millisecond || h.samples != 2 || !h.isProven(scoreNow) {
		t.Errorf("history after two samples = %+v, want 50 ms, 2 samples, proven", h)
	}
	h.lastSuccess = beforeNow(4 * time.Minute)
	h.recordFailure(beforeNow(3 * time.Minute))
	h.recordFailure(beforeNow(2 * time.Minute)) // a consecutive failure is not another flap
	h.recordSuccess(beforeNow(2*time.Minute), 0)
	h.recordFailure(beforeNow(2 * time.Minute))
	if then, now := h.flapsNow(beforeNow(2*time.Minute)), h.flapsNow(scoreNow); then != 1.5 || now != 0.375 {
		t.Errorf("flapsNow() at the second flap and two minutes later = %v, %v, want 1.5, 0.375", then, now)
	}
	h.recordFailure(beforeNow(time.Minute))
	h.recordSuccess(scoreNow, 0)
	if h.failedProbes != 0 || h.rtt != 50*time.Millisecond || h.isPenalized(scoreNow, failurePenalty) {
		t.Errorf("history after recovery = %+v, want 50 ms, no failed probes, no penalty", h)
	}
}

func TestMode_Check(t *testing.T) {
	for _, m := range []Mode{"", ModeLocal, ModeRemote, ModeAuto} {
		if err := m.Check(); err != nil {
			t.Errorf("Mode(%q).Check() = %v, want nil", m, err)
		}
	}
	const want = `"Local" is none of local, remote and auto`
	if err := Mode("Local").Check(); err == nil || !strings.Contains(err.Error(), want) {
		t.Errorf(`Mode("Local").Check() = %v, want %q`, err, want)
	}
}

// A path table has the paths of the address book that were used, and no others.
func TestPathTable_FollowsAddressBook(t *testing.T) {
	book := &SharedAddressBook{}
	book.Store(&AddressBook{Paths: map[string][]Path{"dc2": {{Addr: "a", Via: "local gateway"}, {Addr: "b"}}},
		Servers: map[string]string{"srv1": "l"}})
	p := newPathTable(book, "dc1", ModeLocal)
	touch := func(dc, addr string) {
		p.update(dc, Path{Addr: addr, Via: "local gateway"}, func(s *pathState) { s.Attempts++ })
	}
	for _, k := range []pathKey{{"dc2", "a"}, {"dc2", "b"}, {"dc2", "x"}, {"dc9", "a"}, {"dc1", "l"}, {"dc1", "x"},
		{"dc2", "a"}} {
		touch(k.dc, k.addr)
	}
	got := p.status()
	if len(got) != 3 || got[0].DC != "dc1" || got[1].Addr != "a" || got[1].Attempts != 2 ||
		got[1].Via != "local gateway" {
		t.Errorf("status() = %+v, want 3 entries, 2 attempts over a", got)
	}
	book.Store(&AddressBook{Paths: map[string][]Path{"dc2": {{Addr: "b"}}}})
	if got := p.status(); len(got) != 1 || got[0].Addr != "b" {
		t.Errorf("status() after a left the address book = %+v, want only b", got)
	}
	if got := p.pathsTo("dc2"); len(got) != 1 || got[0].Attempts != 1 || got[0].Health != PathUntested {
		t.Errorf("pathsTo() = %+v, want b, untested, 1 attempt", got)
	}
	touch("dc2", "b")
	if len(p.known) != 1 {
		t.Errorf("table has %d paths, want 1", len(p.known))
	}
}
