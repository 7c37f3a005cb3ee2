// SPDX-License-Identifier: MPL-2.0

package test

import (
	"bufio"
	"fmt"
	"net/http"
	"os"
	"runtime"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/wanfed/wanfed/wanfed"
)

// measure is the resource usage of a crowd at one moment.
type measure struct {
	at time.Time
	// Connections that servers opened. links and sessions lead to other
	// datacenters; local counts both kinds inside datacenters.
	links, sessions, local int
	// Maximum of links and sessions of one server, to one other datacenter and
	// to all others.
	mostPerDC, mostOut int
	// Usage of this process, which runs all servers. Sizes are in bytes.
	goroutines, files int
	rss, heap         int
	cpu               time.Duration
	// Packets to other datacenters since the start.
	packets, dropped uint64
	// Bytes over connections to other datacenters since the start, in both
	// directions, with TLS overhead.
	bytes int64
	gw    gatewayMeasure
}

// gatewayMeasure is the sum of the resource usage of all gateways.
type gatewayMeasure struct {
	goroutines, files, rss int
	mostFiles, mostRSS     int     // maximum of one gateway
	active                 int     // open connections; each passes two gateways
	accepted, cpu          float64 // connections and CPU seconds since the start
}

const measureHead = "  time  links sessions local | most to a dc, of a server | goroutines files RSS heap | " +
	"gateways: conns goroutines files RSS (MiB)"

func (m measure) String() string {
	return fmt.Sprintf("%6d %8d %5d | %12d, %11d | %10d %5d %3d %4d | %15d %10d %5d %3d",
		m.links, m.sessions, m.local, m.mostPerDC, m.mostOut, m.goroutines, m.files, m.rss>>20, m.heap>>20,
		m.gw.active, m.gw.goroutines, m.gw.files, m.gw.rss>>20)
}

// measure returns the present resource usage.
func (c *crowd) measure() measure {
	c.t.Helper()
	m := measure{at: time.Now(), goroutines: runtime.NumGoroutine()}
	for _, s := range c.servers {
		m.add(s)
	}
	for _, admin := range c.gateways {
		m.gw.add(c.metrics(admin))
	}
	var mem runtime.MemStats
	runtime.ReadMemStats(&mem)
	m.heap = int(mem.HeapInuse)
	var use unix.Rusage
	if err := unix.Getrusage(unix.RUSAGE_SELF, &use); err != nil {
		c.t.Fatal(err)
	}
	m.cpu = time.Duration(use.Utime.Nano() + use.Stime.Nano())
	files, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		c.t.Fatal(err)
	}
	m.files = len(files)
	statm, err := os.ReadFile("/proc/self/statm")
	if err != nil {
		c.t.Fatal(err)
	}
	pages, err := strconv.Atoi(strings.Fields(string(statm))[1])
	if err != nil {
		c.t.Fatal(err)
	}
	m.rss = pages * os.Getpagesize()
	return m
}

// add counts one server.
func (m *measure) add(s *crowdServer) {
	st, per, out := s.tunnel.Stats(), map[string]int{}, 0
	count := func(dc string, kind *int) {
		if dc == s.dc {
			m.local++
			return
		}
		*kind++
		out++
		per[dc]++
		m.mostPerDC = max(m.mostPerDC, per[dc])
	}
	for _, l := range st.Links {
		if !l.ConnectedSince.IsZero() {
			count(l.DC, &m.links)
		}
	}
	for _, l := range st.Sessions {
		if !l.ConnectedSince.IsZero() {
			count(l.DC, &m.sessions)
		}
	}
	m.mostOut = max(m.mostOut, out)
	m.bytes += s.bytes.Load()
	for _, tr := range st.Traffic {
		if tr.Pool == wanfed.PoolWAN && tr.DC != s.dc {
			m.packets += tr.Sent
			for _, n := range tr.Dropped {
				m.dropped += n
			}
		}
	}
}

// add counts one gateway.
func (g *gatewayMeasure) add(metrics map[string]float64) {
	files, rss := int(metrics["process_open_fds"]), int(metrics["process_resident_memory_bytes"])
	g.goroutines += int(metrics["go_goroutines"])
	g.files += files
	g.rss += rss
	g.mostFiles, g.mostRSS = max(g.mostFiles, files), max(g.mostRSS, rss)
	g.active += int(metrics["wanfed_gateway_active"])
	g.accepted += metrics["wanfed_gateway_accepted_total"]
	g.cpu += metrics["process_cpu_seconds_total"]
}

// metrics returns the metrics of a gateway by name. It adds up the values of
// all labels of a name.
func (c *crowd) metrics(admin string) map[string]float64 {
	c.t.Helper()
	resp, err := (&http.Client{Timeout: 10 * time.Second}).Get("http://" + admin + "/metrics")
	if err != nil {
		c.t.Fatal(err)
	}
	defer resp.Body.Close()
	sums := map[string]float64{}
	lines := bufio.NewScanner(resp.Body)
	for lines.Scan() {
		name, value, ok := strings.Cut(lines.Text(), " ")
		if v, err := strconv.ParseFloat(value, 64); ok && err == nil {
			name, _, _ = strings.Cut(name, "{")
			sums[name] += v
		}
	}
	if err := lines.Err(); err != nil {
		c.t.Fatal(err)
	}
	return sums
}

// report logs the rates per server and gateway between two measures.
func (c *crowd) report(before, after measure) {
	c.t.Helper()
	took, n := after.at.Sub(before.at).Seconds(), float64(len(c.servers))
	c.t.Logf("per server: %.2f packets/s sent and %.0f B/s exchanged with other datacenters (with TLS), one dial "+
		"every %.0f s, "+
		"%.2f %% of a core", float64(after.packets-before.packets)/took/n, float64(after.bytes-before.bytes)/took/n,
		took*n/max(1, (after.gw.accepted-before.gw.accepted)/2), 100*(after.cpu-before.cpu).Seconds()/took/n)
	c.t.Logf("per gateway: %.2f %% of a core, at most %d files and %d MiB",
		100*(after.gw.cpu-before.gw.cpu)/took/float64(len(c.gateways)), after.gw.mostFiles, after.gw.mostRSS>>20)
	c.t.Logf("packets lost: %d of %d", after.dropped-before.dropped, after.packets-before.packets)
	records := make([]runtime.StackRecord, 2*after.goroutines)
	k, _ := runtime.GoroutineProfile(records)
	by := map[string]int{}
	for _, r := range records[:k] {
		by[ownerOf(r.Stack())]++
	}
	c.t.Logf("goroutines by package: %v", by)
}

// ownerOf returns the owner of a goroutine: the outermost known package of its
// stack.
func ownerOf(stack []uintptr) string {
	owner := "other"
	frames := runtime.CallersFrames(stack)
	for {
		f, more := frames.Next()
		for of, sign := range map[string]string{
			"tunnel": "github.com/wanfed/wanfed/wanfed.", "memberlist": "hashicorp/memberlist.",
			"yamux": "hashicorp/yamux.",
		} {
			if strings.Contains(f.Function, sign) {
				owner = of
			}
		}
		if !more {
			return owner
		}
	}
}
