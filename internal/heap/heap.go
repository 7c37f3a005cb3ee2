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
	spare   = 8 << 20 // what an idle process may have besides what it needs, or share, if that is more
	share   = 25      // percent; the least GOGC
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
		}
		if p.rested() { // little is allocated, so that the next collection would be far, and free memory would stay
			runtime.GC() // what a sync.Pool has goes with the second one
			debug.FreeOSMemory()
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
	percent int  // GOGC
	quiet   int  // times in a row that were not busy
	busy    bool // since it was idle last
}

// change says whether percent is to be set, after a time in which so many bytes were allocated.
func (p *pace) change(allocated, live uint64) bool {
	want := p.percent
	if allocated >= busy {
		p.quiet, p.busy, want = 0, true, percentFor(live)
	} else if p.quiet++; p.quiet >= calm {
		want = idlePercent(live)
	}
	if want == p.percent || want != usual && want != share && want > p.percent*9/10 && want < p.percent*11/10 { // setting it stops all goroutines
		return false
	}
	p.percent = want
	return true
}

// rested says, once, that the process was busy and is idle now.
func (p *pace) rested() bool {
	was := p.busy
	p.busy = was && p.quiet < calm
	return was && !p.busy
}

// percentFor is with what GOGC the heap of a busy process becomes Room. If it needs more than half of that, it may become larger by
// as much, so that it is not collected more often, and by share at least.
func percentFor(live uint64) int {
	const most = usual * Room / minimal
	if live == 0 {
		return most
	}
	return int(min(most, max((Room-min(live, Room/2))*100/live, share)))
}

// idlePercent is the same for an idle one.
func idlePercent(live uint64) int {
	return int(min(usual, max(spare*100/max(live, 1), share)))
}
