// SPDX-License-Identifier: MPL-2.0

package main

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"
	"time"
)

// fanout writes a key that many clients watch. It does the next write when all
// watches have received the last one.
func fanout(watches int) func(context.Context, *contender, settings) (map[string]float64, error) {
	return func(ctx context.Context, c *contender, s settings) (map[string]float64, error) {
		writer, err := dialWatcher(ctx, c)
		if err != nil {
			return nil, err
		}
		defer writer.conn.Close()
		f := newFanoutTracker(watches)
		conns := min(watches, watchConns)
		watchErrs := make(chan error, conns)
		var wg sync.WaitGroup
		defer wg.Wait()
		for i := range conns {
			w, err := dialWatcher(ctx, c)
			if err != nil {
				return nil, err
			}
			defer w.conn.Close()
			n := watches/conns + boolToInt(i < watches%conns)
			wg.Go(func() { watchErrs <- c.watch(w, "fanout", n, f.ready, f.event) })
		}
		if err := f.await(ctx, watchErrs); err != nil {
			return nil, fmt.Errorf("start watches: %w", err)
		}
		path, message := c.put("fanout", make([]byte, valueSize))
		change := func() error {
			f.expect()
			if err := writer.call(path, message); err != nil {
				return err
			}
			responded := time.Since(f.start)
			if err := f.await(ctx, watchErrs); err != nil {
				return err
			}
			f.record(responded)
			return nil
		}
		f.measuring.Store(true)
		for range warmChanges { // the first write opens the connection
			if err := change(); err != nil {
				return nil, err
			}
		}
		f.sinceWrite, f.sinceResponse = nil, nil
		cpu, err := c.CPUTime()
		if err != nil {
			return nil, err
		}
		changes := 0
		for begin := time.Now(); changes < s.changes || time.Since(begin) < s.measure; changes++ {
			if err := change(); err != nil {
				return nil, err
			}
		}
		used, err := c.CPUTime()
		return map[string]float64{
			"p50 ms": percentile(f.sinceWrite, 50), "p99 ms": percentile(f.sinceWrite, 99),
			"p50 ms after answer": percentile(f.sinceResponse, 50),
			"p99 ms after answer": percentile(f.sinceResponse, 99),
			"server µs":           float64((used - cpu).Microseconds()) / float64(changes*watches),
		}, err
	}
}

func boolToInt(b bool) int {
	if b {
		return 1
	}
	return 0
}

// fanoutTracker counts the events that watches have received.
type fanoutTracker struct {
	watches   int
	measuring atomic.Bool
	left      atomic.Int64 // watches that have not received the current write
	done      chan struct{}
	start     time.Time
	sent      time.Duration // time of the current write, since start

	mu       sync.Mutex
	received []receipt // of the current write

	sinceWrite    []time.Duration // latencies since the write was sent
	sinceResponse []time.Duration // latencies since its response; 0 if the event arrived first
}

// receipt is a number of events received at the same time.
type receipt struct {
	at time.Duration // since fanoutTracker.start
	n  int
}

func newFanoutTracker(watches int) *fanoutTracker {
	f := &fanoutTracker{watches: watches, start: time.Now()}
	f.expect()
	return f
}

// expect replaces done. The new channel is closed when every watch has started
// or, after the start, when every watch has received one event.
func (f *fanoutTracker) expect() {
	f.done = make(chan struct{})
	f.left.Store(int64(f.watches))
	f.sent = time.Since(f.start)
}

func (f *fanoutTracker) ready(n int) {
	if f.left.Add(int64(-n)) == 0 {
		close(f.done)
	}
}

func (f *fanoutTracker) event(n int) {
	if !f.measuring.Load() {
		return
	}
	at := time.Since(f.start)
	f.mu.Lock()
	f.received = append(f.received, receipt{at, n})
	f.mu.Unlock()
	f.ready(n)
}

// record adds the latencies of a write that all watches have received.
func (f *fanoutTracker) record(responded time.Duration) {
	for _, r := range f.received {
		for range r.n {
			f.sinceWrite = append(f.sinceWrite, r.at-f.sent)
			f.sinceResponse = append(f.sinceResponse, max(0, r.at-responded))
		}
	}
	f.received = f.received[:0]
}

func (f *fanoutTracker) await(ctx context.Context, watchErrs <-chan error) error {
	timeout := time.NewTimer(fanoutTimeout)
	defer timeout.Stop()
	select {
	case <-f.done:
		return nil
	case err := <-watchErrs:
		return fmt.Errorf("watch ended: %w", err)
	case <-timeout.C:
		return fmt.Errorf("%d of %d watches received nothing for %v", f.left.Load(), f.watches, fanoutTimeout)
	case <-ctx.Done():
		return ctx.Err()
	}
}
