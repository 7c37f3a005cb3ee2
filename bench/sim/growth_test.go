// SPDX-License-Identifier: MPL-2.0

package sim

import (
	"errors"
	"flag"
	"fmt"
	"os"
	"runtime"
	"runtime/pprof"
	"strings"
	"testing"
	"time"

	"github.com/wanfed/wanfed/internal/testutil"
)

var (
	sizes = flag.String("sim.sizes", "10x1,10x3,30x1,100x1,300x1",
		"`datacentersxservers,...` that TestGrowth simulates with WANFED_BENCH=1")
	settle = flag.Duration("sim.settle", 9*time.Minute,
		"time from convergence until TestGrowth measures the idle state")
	heaps = flag.String("sim.heaps", "",
		"path `prefix` of heap profiles, which TestGrowth writes after the start and while idle; empty: none")
	starts = flag.Duration("sim.start", 0,
		"time over which TestGrowth spreads the starts of the datacenters; 0: all at the same time")
	dropQueued = flag.Bool("sim.drop-gossip", false,
		"drop queued gossip after convergence; with 1,000 members sending it takes minutes")
	links = flag.Int("sim.links", 0, "maximum `number` of idle links per server; 0: the default")
)

// TestGrowth starts federations of growing size, waits until they are idle, and
// gives one gateway of each another address. It logs the cost for each server
// and checks bounds. Without WANFED_BENCH it simulates ten datacenters.
func TestGrowth(t *testing.T) {
	list := "10x1"
	if os.Getenv("WANFED_BENCH") != "" {
		list = *sizes
	}
	var table []growth
	for size := range strings.SplitSeq(list, ",") {
		var datacenters, servers int
		if _, err := fmt.Sscanf(size, "%dx%d", &datacenters, &servers); err != nil || datacenters < 2 || servers < 1 {
			t.Fatalf("-sim.sizes: size %q is invalid, want a size such as 30x1", size)
		}
		t.Run(size, func(t *testing.T) {
			testutil.Bubble(t, func(t *testing.T) {
				g := simulate(t, datacenters, servers)
				g.check(t)
				table = append(table, g)
				t.Log("\n" + tableOf([]growth{g})) // the next size may exceed this machine's memory
			})
		})
	}
	if len(table) > 1 {
		t.Log("\n" + tableOf(table))
	}
}

const (
	gossipTime = time.Minute     // gossip about the start takes about this long
	idleTime   = 2 * time.Minute // duration of the idle measurement
	drainTime  = time.Minute     // goroutines of libraries that cannot be joined end within this
)

// simulate runs one federation. The caller must be in a synctest bubble.
func simulate(t *testing.T, datacenters, servers int) growth {
	w := newWorld(t, datacenters, servers)
	g := growth{datacenters: datacenters, servers: servers}
	cpu := cpuTime()
	start := time.Now()
	defer func() {
		w.close()
		time.Sleep(drainTime)
	}()
	for i, s := range w.sites {
		time.Sleep(time.Until(start.Add(*starts * time.Duration(i) / time.Duration(datacenters))))
		w.start(s)
	}
	g.convergedAfter = w.converge(t)
	writeHeap(t, "start")
	if *dropQueued {
		w.dropQueuedBroadcasts(t)
	}
	for converged := time.Now(); time.Since(converged) < gossipTime; time.Sleep(time.Second) {
		conns := w.conns()
		g.peakConns = max(g.peakConns, conns[len(conns)/2])
	}
	g.startCPU = cpuTime() - cpu
	time.Sleep(*settle)
	before := w.read()
	time.Sleep(idleTime)
	after := w.read()
	writeHeap(t, "idle")
	g.setIdle(before, after, len(w.servers()))
	g.addressKnown, g.pathLeft, g.falseFailures = w.moveGateway(t, w.sites[len(w.sites)/2])
	return g
}

// writeHeap writes a heap profile if -sim.heaps is set.
func writeHeap(t testing.TB, stage string) {
	t.Helper()
	if *heaps == "" {
		return
	}
	f, err := os.Create(*heaps + "." + stage + ".heap")
	if err != nil {
		t.Fatal(err)
	}
	runtime.GC()
	if err := errors.Join(pprof.Lookup("heap").WriteTo(f, 0), f.Close()); err != nil {
		t.Fatal(err)
	}
}
