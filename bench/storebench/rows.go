// SPDX-License-Identifier: MPL-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"google.golang.org/grpc"
)

// row is one measurement. run returns figures by name.
type row struct {
	name  string
	run   func(ctx context.Context, c *contender, s settings) (map[string]float64, error)
	goals []goal
	floor bool // the floor takes part
}

// goal is the minimum, or the maximum, of wanfed's figure divided by etcd's.
type goal struct {
	figure string
	ratio  float64
	atMost bool
}

const (
	keys            = 10_000
	valueSize       = 256
	clientsPerConn  = 16
	watchConns      = 8
	fanoutTimeout   = 20 * time.Second
	warmChanges     = 20
	storedResources = 100_000
)

func allRows() []row {
	rows := []row{
		{name: "memory", run: memory}, // first: needs processes without data
		{name: "write/1", run: writes(1), floor: true, goals: []goal{{"per s", 1, false}}},
		{name: "write/16", run: writes(16)},
		{name: "write/256", run: writes(256), goals: []goal{{"per s", 1.5, false}}},
		{name: "read/64", run: reads(64, false)},
		{name: "read-strong/64", run: reads(64, true)},
	}
	for _, n := range []int{1, 1000, 10_000} {
		rows = append(rows, row{
			name: fmt.Sprintf("fanout/%d", n), run: fanout(n), floor: n == 1, goals: []goal{{"p99 ms", 0.5, true}},
		})
	}
	return rows
}

func keyName(n int) string { return fmt.Sprintf("bench/%08d", n) }

func writes(clients int) func(context.Context, *contender, settings) (map[string]float64, error) {
	return func(ctx context.Context, c *contender, s settings) (map[string]float64, error) {
		value := make([]byte, valueSize)
		return measureCalls(ctx, c, s, clients, func(ctx context.Context, cc *grpc.ClientConn) error {
			return c.write(ctx, cc, keyName(rand.IntN(keys)), value)
		})
	}
}

func reads(clients int, strong bool) func(context.Context, *contender, settings) (map[string]float64, error) {
	return func(ctx context.Context, c *contender, s settings) (map[string]float64, error) {
		return measureCalls(ctx, c, s, clients, func(ctx context.Context, cc *grpc.ClientConn) error {
			return c.get(ctx, cc, "ready", strong)
		})
	}
}

// measureCalls runs clients that call do repeatedly, and measures for s.measure
// after s.warm.
func measureCalls(
	ctx context.Context, c *contender, s settings, clients int, do func(context.Context, *grpc.ClientConn) error,
) (map[string]float64, error) {
	conns, closeAll, err := dialAll(c, (clients+clientsPerConn-1)/clientsPerConn)
	if err != nil {
		return nil, err
	}
	defer closeAll()
	cpu, err := c.CPUTime()
	if err != nil {
		return nil, err
	}
	var calls atomic.Int64
	var wg sync.WaitGroup
	begin := time.Now().Add(s.warm)
	end := begin.Add(s.measure)
	latencies, errs := make([][]time.Duration, clients), make([]error, clients)
	for i := range clients {
		wg.Go(func() {
			for at := time.Now(); at.Before(end); {
				if err := do(ctx, conns[i%len(conns)]); err != nil {
					errs[i] = err
					return
				}
				calls.Add(1)
				now := time.Now()
				if at.After(begin) {
					latencies[i] = append(latencies[i], now.Sub(at))
				}
				at = now
			}
		})
	}
	wg.Wait()
	all := slices.Concat(latencies...)
	if err := errors.Join(errs...); err != nil || len(all) == 0 {
		return nil, fmt.Errorf("%d calls measured: %w", len(all), err)
	}
	used, err := c.CPUTime()
	return map[string]float64{
		"per s":     float64(len(all)) / s.measure.Seconds(),
		"server µs": float64((used - cpu).Microseconds()) / float64(calls.Load()),
		"p50 ms":    percentile(all, 50), "p99 ms": percentile(all, 99),
	}, err
}

func dialAll(c *contender, n int) (conns []*grpc.ClientConn, closeAll func(), err error) {
	closeAll = func() {
		for _, cc := range conns {
			cc.Close()
		}
	}
	for range n {
		cc, err := c.dial()
		if err != nil {
			closeAll()
			return nil, nil, err
		}
		conns = append(conns, cc)
	}
	return conns, closeAll, nil
}

// percentile sorts all and returns a percentile in milliseconds.
func percentile(all []time.Duration, p int) float64 {
	slices.Sort(all)
	return float64(all[min(len(all)-1, len(all)*p/100)].Microseconds()) / 1000
}

// memory measures how much storedResources resources add to the memory of the
// process.
func memory(ctx context.Context, c *contender, _ settings) (map[string]float64, error) {
	conns, closeAll, err := dialAll(c, 4)
	if err != nil {
		return nil, err
	}
	defer closeAll()
	before, err := rss(c.Pid())
	if err != nil {
		return nil, err
	}
	var next atomic.Int64
	var wg sync.WaitGroup
	errs := make([]error, 4*clientsPerConn)
	value, runID := make([]byte, valueSize), rand.IntN(1<<30)
	for i := range errs {
		wg.Go(func() {
			for n := next.Add(1); n <= storedResources && errs[i] == nil; n = next.Add(1) {
				errs[i] = c.write(ctx, conns[i%len(conns)], fmt.Sprintf("m%x/%08d", runID, n), value)
			}
		})
	}
	wg.Wait()
	if err := errors.Join(errs...); err != nil {
		return nil, err
	}
	after, err := rss(c.Pid())
	return map[string]float64{"before MB": before, "after MB": after, "MB per 100,000": after - before}, err
}

// rss returns the resident memory of a process in MB (10^6 bytes).
func rss(pid int) (float64, error) {
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		return 0, fmt.Errorf("read process memory: %w", err)
	}
	for line := range strings.Lines(string(b)) {
		if v, ok := strings.CutPrefix(line, "VmRSS:"); ok {
			kib, err := strconv.ParseFloat(strings.TrimSuffix(strings.TrimSpace(v), " kB"), 64)
			return kib * 1024 / 1e6, err
		}
	}
	return 0, errors.New("read process memory: no VmRSS in /proc status")
}
