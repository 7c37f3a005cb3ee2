// SPDX-License-Identifier: MPL-2.0

package test

import (
	"context"
	"flag"
	"os"
	"slices"
	"testing"
	"time"

	"github.com/wanfed/wanfed/internal/testutil"
)

var (
	footprintDCs     = flag.Int("footprint.dcs", 20, "datacenters of TestIdleFootprint")
	footprintServers = flag.Int("footprint.servers", 3, "servers per datacenter of TestIdleFootprint")
	footprintFor     = flag.Duration("footprint.for", 3*time.Minute, "duration of the measurement of TestIdleFootprint")
)

// TestIdleFootprint measures the idle WAN pool of a large federation. A server
// may have at most two connections to each other datacenter. Connections,
// goroutines, open files and memory must not grow.
func TestIdleFootprint(t *testing.T) {
	if os.Getenv("WANFED_BENCH") == "" {
		t.Skip("takes minutes: set WANFED_BENCH=1")
	}
	c := newCrowd(t, *footprintDCs, *footprintServers)
	t.Logf("%d datacenters, each with %d servers and a gateway", *footprintDCs, *footprintServers)
	c.join()
	// the last pairs need a push/pull exchange, which memberlist makes every 2
	// minutes
	for _, share := range []float64{0.99, 1} {
		took := testutil.Await(t, 6*time.Minute, "the pool converges", func(context.Context) error {
			return c.converged(share)
		})
		t.Logf("%.0f %% of the pairs have converged after %v more", 100*share, took.Round(10*time.Millisecond))
	}

	tick := time.NewTicker(*footprintFor / 24)
	defer tick.Stop()
	before := c.measure()
	t.Log(measureHead)
	var all []measure
	for begin := time.Now(); time.Since(begin) < *footprintFor; {
		<-tick.C
		m := c.measure()
		all = append(all, m)
		t.Logf("%6.0fs %v", time.Since(begin).Seconds(), m)
		if m.mostPerDC > 2 {
			t.Errorf("a server has %d connections to one datacenter, want at most 2", m.mostPerDC)
		}
	}
	c.report(before, all[len(all)-1])
	if err := c.converged(1); err != nil {
		t.Error(err)
	}
	checkFlat(t, all)
}

// checkFlat fails the test if the median of a figure grew by more than 20 %
// from the first third of the measures to the last.
func checkFlat(t testing.TB, all []measure) {
	t.Helper()
	for _, figure := range []struct {
		what string
		of   func(measure) int
	}{
		{"connections", func(m measure) int { return m.links + m.sessions }},
		{"goroutines", func(m measure) int { return m.goroutines }},
		{"open files", func(m measure) int { return m.files }},
		{"KiB of memory", func(m measure) int { return m.rss >> 10 }},
		{"gateways' goroutines", func(m measure) int { return m.gw.goroutines }},
		{"gateways' open files", func(m measure) int { return m.gw.files }},
		{"gateways' KiB of memory", func(m measure) int { return m.gw.rss >> 10 }},
	} {
		median := func(part []measure) int {
			v := make([]int, len(part))
			for i, m := range part {
				v[i] = figure.of(m)
			}
			slices.Sort(v)
			return v[len(v)/2]
		}
		first, last := median(all[:len(all)/3]), median(all[len(all)*2/3:])
		t.Logf("%s: median of the first third %d, of the last %d", figure.what, first, last)
		if float64(last) > 1.2*float64(first) {
			t.Errorf("%s grew from %d to %d, want at most 20 %% more", figure.what, first, last)
		}
	}
}
