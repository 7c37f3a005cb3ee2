// SPDX-License-Identifier: MPL-2.0

package heap

import (
	"context"
	"os"
	"runtime"
	"runtime/debug"
	"runtime/metrics"
	"time"
)

const (
	// Room is how large the heap of a busy process may become, in bytes, before it is collected, if it need not be larger.
	// For a second after a sudden growth of what it needs it may be more.
	Room = 64 << 20

	every   = time.Second
	busy    = 4 << 20 // bytes allocated in that time
	calm    = 10      // times in a row that it was not busy, until it counts as idle
	usual   = 100     // Go's default of GOGC
	minimal = 4 << 20 // below which Go does not collect, at the default
)

// Run adapts the process to what it does until ctx ends. It does nothing where GOGC or GOMEMLIMIT are set: somebody has chosen.
func Run(ctx context.Context) {
	for _, name := range []string{"GOGC", "GOMEMLIMIT"} {
		if os.Getenv(name) != "" {
			return
		}
	}
	run(ctx, every)
}

func run(ctx context.Context, every time.Duration) {
	tick := time.NewTicker(every)
	defer tick.Stop()
	p := pace{percent: usual}
	defer func() { debug.SetGCPercent(usual) }()
	total, _ := read()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		now, live := read()
		if p.change(now-total, live) {
			debug.SetGCPercent(p.percent)
			if p.quiet > 0 { // idle: little is allocated, so that the next collection would be far, and free memory would stay
				runtime.GC() // what a sync.Pool has goes with the second one
				debug.FreeOSMemory()
			}
		}
		total = now
	}
}

// read returns how many bytes were allocated since the process began, and how many were in use after the last collection.
func read() (total, live uint64) {
	s := []metrics.Sample{{Name: "/gc/heap/allocs:bytes"}, {Name: "/gc/heap/live:bytes"}}
	metrics.Read(s)
	return s[0].Value.Uint64(), s[1].Value.Uint64()
}

// pace is what is set now.
type pace struct {
	percent int // GOGC
	quiet   int // times in a row that were not busy
}

// change says whether percent is to be set, after a time in which so many bytes were allocated.
func (p *pace) change(allocated, live uint64) bool {
	want := p.percent
	if allocated >= busy {
		p.quiet, want = 0, percentFor(live)
	} else if p.quiet++; p.quiet >= calm {
		want = usual
	}
	if want == p.percent || want > usual && want > p.percent*9/10 && want < p.percent*11/10 { // setting it stops all goroutines
		return false
	}
	p.percent = want
	return true
}

// percentFor is with what GOGC the heap becomes Room.
func percentFor(live uint64) int {
	const most = usual * Room / minimal
	if live == 0 {
		return most
	}
	return int(min(most, max(usual*Room/live, 2*usual)-usual))
}
