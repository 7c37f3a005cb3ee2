// SPDX-License-Identifier: MPL-2.0

package heap

import (
	"context"
	"runtime/metrics"
	"testing"
	"time"
)

func TestPercentFor(t *testing.T) {
	for _, c := range []struct {
		live uint64
		want int
	}{{0, 1600}, {1, 1600}, {1 << 20, 1600}, {4 << 20, 1500}, {8 << 20, 700}, {16 << 20, 300}, {24 << 20, 166}, {32 << 20, 100}, {40 << 20, 80}, {Room, 50}, {2 * Room, 25}, {2*Room + 1, 25}, {1 << 40, 25}} {
		if got := percentFor(c.live); got != c.want {
			t.Errorf("%d bytes in use: %d, want %d", c.live, got, c.want)
		}
	}
}

func TestIdlePercent(t *testing.T) {
	for _, c := range []struct {
		live uint64
		want int
	}{{0, 100}, {1, 100}, {spare, 100}, {10 << 20, 80}, {16 << 20, 50}, {32 << 20, 25}, {Room, 25}, {1 << 40, 25}} {
		if got := idlePercent(c.live); got != c.want {
			t.Errorf("%d bytes in use: %d, want %d", c.live, got, c.want)
		}
	}
}

func TestPace(t *testing.T) {
	p := pace{percent: usual}
	const much, little, live = busy, busy - 1, 8 << 20
	for n, c := range []struct {
		allocated, live uint64
		set             bool
		percent         int
	}{
		{little, live, false, 100}, {much, live, true, 700}, {much, live, false, 700}, {much, live + live/50, false, 700},
		{much, 2 * live, true, 300}, {little, live, false, 300}, {much, 100 * live, true, 25}, {much, live, true, 700},
	} {
		if set := p.change(c.allocated, c.live); set != c.set || p.percent != c.percent {
			t.Errorf("%d: set %t to %d, want %t, %d", n, set, p.percent, c.set, c.percent)
		}
	}
	for n := 1; n <= calm; n++ {
		if set := p.change(little, live); set != (n == calm) {
			t.Errorf("%d times not busy: set %t to %d", n, set, p.percent)
		}
		if rested := p.rested(); rested != (n == calm) {
			t.Errorf("%d times not busy: rested %t", n, rested)
		}
	}
	if p.percent != usual || p.change(0, live) {
		t.Errorf("idle: %d", p.percent)
	}
	if !p.change(0, 2*live) || p.percent != 50 || p.rested() {
		t.Errorf("idle, and more is needed: %d", p.percent)
	}
	// A large one has the same pace whether idle or not, and gives back what it does not need all the same.
	p = pace{percent: share, quiet: calm - 1, busy: true}
	if p.change(little, 4*Room) || !p.rested() {
		t.Errorf("large and idle: %d", p.percent)
	}
}

// TestRun: a busy process gets room, and gives it back when it is not.
func TestRun(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() { run(ctx, 20*time.Millisecond); close(done) }()
	await := func(what string, do func(), is func(percent uint64) bool) {
		t.Helper()
		for begin := time.Now(); !is(percent()); do() {
			if time.Since(begin) > 20*time.Second {
				t.Fatalf("%s: GOGC is %d", what, percent())
			}
		}
	}
	var kept []byte
	await("busy", func() { kept = make([]byte, 1<<20); time.Sleep(time.Millisecond) }, func(p uint64) bool { return p > usual })
	await("idle", func() { time.Sleep(time.Millisecond) }, func(p uint64) bool { return p == usual })
	_ = kept
	await("busy", func() { kept = make([]byte, 1<<20); time.Sleep(time.Millisecond) }, func(p uint64) bool { return p > usual })
	cancel()
	<-done
	if p := percent(); p != usual {
		t.Errorf("after the end GOGC is %d", p)
	}
}

func percent() uint64 {
	s := []metrics.Sample{{Name: "/gc/gogc:percent"}}
	metrics.Read(s)
	return s[0].Value.Uint64()
}
