// SPDX-License-Identifier: MPL-2.0

package sim

import (
	"fmt"
	"runtime"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/wanfed/wanfed/wanfed"
)

// growth is the cost of a federation of one size. Rates and amounts are per
// server unless noted.
type growth struct {
	datacenters, servers int

	// convergedAfter is the time until every server sees every server, and has
	// a path to and the state of every datacenter.
	convergedAfter time.Duration
	peakConns      int64         // maximum of the median server in the minute after convergence
	startCPU       time.Duration // CPU time of all servers from the start to the end of that minute

	// Measured while idle.
	bytes, packets   float64       // per second; bytes in both directions, including TLS
	conns, maxConns  int64         // of the median server, and of the server with the most
	goroutines, heap float64       // heap and stacks in bytes
	cpu              time.Duration // CPU time of all servers per minute
	dropped          uint64        // gossip packets

	// Measured after the gateway of one datacenter got another address.
	addressKnown  spread // until the address book of a server has the address
	pathLeft      spread // until a link of a server leaves the lost path
	falseFailures int    // servers that reported another server as failed
}

// reading has the counters and resources of all servers at one time.
type reading struct {
	at               time.Time
	cpu              time.Duration
	bytes            int64 // sent and received
	sent, dropped    uint64
	conns            []int64
	goroutines, heap float64
}

// read runs the garbage collector and returns the current reading.
func (w *world) read() reading {
	r := reading{conns: w.conns(), goroutines: float64(runtime.NumGoroutine())}
	for _, v := range w.servers() {
		r.bytes += v.host.sent.Load() + v.host.received.Load()
		for _, tr := range v.tunnel.Stats().Traffic {
			if tr.Pool == wanfed.PoolWAN {
				r.sent += tr.Sent
				for _, n := range tr.Dropped {
					r.dropped += n
				}
			}
		}
	}
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	r.heap = float64(m.HeapAlloc + m.StackInuse)
	r.at, r.cpu = time.Now(), cpuTime()
	return r
}

// conns returns the sorted numbers of connections per server.
func (w *world) conns() (all []int64) {
	for _, v := range w.servers() {
		all = append(all, v.host.open.Load())
	}
	slices.Sort(all)
	return all
}

// cpuTime returns the CPU time of this process. It is real time, not fake time.
func cpuTime() time.Duration {
	var use syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &use); err != nil {
		return 0
	}
	return time.Duration(use.Utime.Nano() + use.Stime.Nano())
}

// setIdle sets the figures of an idle federation of n servers, from two
// readings.
func (g *growth) setIdle(before, after reading, n int) {
	elapsed := after.at.Sub(before.at)
	serverSeconds := float64(n) * elapsed.Seconds()
	g.bytes, g.packets = float64(after.bytes-before.bytes)/serverSeconds, float64(after.sent-before.sent)/serverSeconds
	g.conns, g.maxConns = after.conns[n/2], after.conns[n-1]
	g.goroutines, g.heap = after.goroutines/float64(n), after.heap/float64(n)
	g.cpu = time.Duration(float64(after.cpu-before.cpu) * time.Minute.Seconds() / elapsed.Seconds())
	g.dropped = after.dropped - before.dropped
}

// check reports an error for each figure over its bound. The bounds do not
// depend on the size of the federation, apart from the connections per
// datacenter.
func (g growth) check(t testing.TB) {
	t.Helper()
	for _, c := range []struct {
		figure string
		got    any
		bound  string
		met    bool
	}{
		{"time until converged", g.convergedAfter, "1m", g.convergedAfter <= time.Minute},
		{
			"connections of a server", g.maxConns, "4 per server of the federation",
			g.maxConns <= int64(4*g.servers*g.datacenters),
		},
		{"bytes per second of an idle server", g.bytes, "16 KiB", g.bytes <= 16<<10},
		{"packets per second sent by an idle server", g.packets, "2", g.packets <= 2},
		{"packets dropped while idle", g.dropped, "0", g.dropped == 0},
		{
			"time until every server has the new address", g.addressKnown.quantile(1), "20s",
			g.addressKnown.quantile(1) <= 20*time.Second,
		},
		{ // an idle link probes every 30 s
			"time until no link uses the lost path", g.pathLeft.quantile(1), "45s",
			g.pathLeft.quantile(1) <= 45*time.Second,
		},
		{"servers that reported others as failed", g.falseFailures, "0", g.falseFailures == 0},
	} {
		if !c.met {
			t.Errorf("%s = %v, want at most %s", c.figure, c.got, c.bound)
		}
	}
}

// tableOf returns a Markdown table.
func tableOf(all []growth) string {
	var b strings.Builder
	row := func(label string, cell func(growth) string) {
		fmt.Fprintf(&b, "| %s |", label)
		for _, g := range all {
			fmt.Fprintf(&b, " %s |", cell(g))
		}
		b.WriteByte('\n')
	}
	row("datacenters x servers", func(g growth) string { return fmt.Sprintf("%d x %d", g.datacenters, g.servers) })
	row("---", func(growth) string { return "---" })
	row("start until all see all", func(g growth) string { return fmt.Sprintf("%.1f s", g.convergedAfter.Seconds()) })
	row("connections, median server, most in the minute after", func(g growth) string {
		return fmt.Sprint(g.peakConns)
	})
	row("idle: connections, median server", func(g growth) string { return fmt.Sprint(g.conns) })
	row("idle: connections, the primary's", func(g growth) string { return fmt.Sprint(g.maxConns) })
	row("idle: bytes/s", func(g growth) string { return fmt.Sprintf("%.0f", g.bytes) })
	row("idle: packets/s sent", func(g growth) string { return fmt.Sprintf("%.2f", g.packets) })
	row("idle: goroutines", func(g growth) string { return fmt.Sprintf("%.0f", g.goroutines) })
	row("idle: heap and stacks", func(g growth) string { return fmt.Sprintf("%.1f MiB", g.heap/(1<<20)) })
	row("re-addressed: in the books, p50 / p99 / max", func(g growth) string { return g.addressKnown.String() })
	row("re-addressed: off the lost path, p50 / p99 / max", func(g growth) string { return g.pathLeft.String() })
	row("re-addressed: servers that hold any for failed", func(g growth) string { return fmt.Sprint(g.falseFailures) })
	row("processor, of all: start and the minute after", func(g growth) string {
		return fmt.Sprintf("%.1f s", g.startCPU.Seconds())
	})
	row("processor, of all: an idle minute", func(g growth) string { return fmt.Sprintf("%.2f s", g.cpu.Seconds()) })
	return b.String()
}

// spread is a set of durations.
type spread []time.Duration

// quantile returns the q-quantile, with q from 0 to 1.
func (s spread) quantile(q float64) time.Duration {
	if len(s) == 0 {
		return 0
	}
	sorted := slices.Sorted(slices.Values(s))
	return sorted[min(len(s)-1, int(q*float64(len(s))))]
}

func (s spread) String() string {
	seconds := func(q float64) float64 { return s.quantile(q).Seconds() }
	return fmt.Sprintf("%.1f / %.1f / %.1f s", seconds(0.5), seconds(0.99), seconds(1))
}
