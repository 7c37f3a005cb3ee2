// SPDX-License-Identifier: MPL-2.0

package test

import (
	"context"
	"fmt"
	"math"
	"os"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/wanfed/wanfed/test/lab"
)

// The chaos tests break the path between datacenters 80 ms apart while requests
// cross it. They measure the effect on the requests and on the WAN pool.
const (
	oneWay = 40 * time.Millisecond
	// requestInterval is the time between requests. They are sent at a fixed
	// rate, without waiting for earlier responses.
	requestInterval = 100 * time.Millisecond
	requestTimeout  = 10 * time.Second
	// maxRise bounds the p99 during a fault, as an addition to the p99 before
	// it.
	maxRise = 300 * time.Millisecond
	// aliveWithin bounds the time until all members are alive again after the
	// end of a fault.
	aliveWithin = 3 * time.Second
)

// long reports whether the long form is enabled: longer faults, each in its own
// lab and alone on the machine.
func long() bool { return os.Getenv("WANFED_CHAOS") != "" }

// longOrShort returns the one for the short form or the one for the long form.
func longOrShort(short, ifLong time.Duration) time.Duration {
	if long() {
		return ifLong
	}
	return short
}

// parallelUnlessChaos lets the short form share the machine.
func parallelUnlessChaos(t *testing.T) {
	t.Helper()
	if !long() {
		t.Parallel()
	}
}

// response is the outcome of one request.
type response struct {
	at   time.Time // when the request was due
	took time.Duration
	err  error
}

// requester sends requests about another datacenter to one server until stop.
type requester struct {
	name   string
	cancel context.CancelFunc
	wg     sync.WaitGroup

	mu        sync.Mutex
	responses []response
}

// requestAcross starts to request the leader of dc from s repeatedly.
func requestAcross(t *testing.T, s *lab.Node, dc string) *requester {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	a := &requester{name: s.WANName() + " to " + dc, cancel: cancel}
	t.Cleanup(a.stop)
	a.wg.Go(func() {
		tick := time.NewTicker(requestInterval)
		defer tick.Stop()
		for {
			select {
			case <-tick.C:
				at := time.Now()
				a.wg.Go(func() { a.request(s, dc, at) })
			case <-ctx.Done():
				return
			}
		}
	})
	return a
}

func (a *requester) request(s *lab.Node, dc string, at time.Time) {
	ctx, cancel := context.WithTimeout(context.Background(), requestTimeout)
	defer cancel()
	var leader string
	err := s.Get(ctx, "/v1/status/leader?dc="+dc, &leader)
	a.mu.Lock()
	defer a.mu.Unlock()
	a.responses = append(a.responses, response{at, time.Since(at), err})
}

// stop waits for the requests in flight. It may be called more than once.
func (a *requester) stop() {
	a.cancel()
	a.wg.Wait()
}

// figures summarizes responses.
type figures struct {
	n, failed         int
	p50, p99, longest time.Duration
	failing           time.Duration   // longest time until a request failed
	lastSlow          time.Duration   // when the last failed or slow request was sent, since the begin; 0 means none
	errs              map[string]int  // count by error
	slow              []time.Duration // slowest successful requests, slowest first
}

func (f figures) String() string {
	s := fmt.Sprintf("%d requests, %d failed, p50 %v, p99 %v, longest %v", f.n, f.failed, ms(f.p50), ms(f.p99),
		ms(f.longest))
	if f.lastSlow > 0 {
		s += fmt.Sprintf(", last failed or slow one sent after %v; slowest %v", ms(f.lastSlow), f.slow)
	}
	if f.failed > 0 {
		s += fmt.Sprintf("; failures within %v: %v", ms(f.failing), f.errs)
	}
	return s
}

func ms(d time.Duration) time.Duration { return d.Round(time.Millisecond) }

// completedBefore selects the responses that arrived before to.
func completedBefore(to time.Time) func(response) bool {
	return func(r response) bool { return r.at.Add(r.took).Before(to) }
}

// overlapping selects the requests that were in flight between from and to.
func overlapping(from, to time.Time) func(response) bool {
	return func(r response) bool { return r.at.Before(to) && r.at.Add(r.took).After(from) }
}

// figures summarizes the responses that some selects. A failed request counts
// with requestTimeout. A request that takes longer than limit is slow.
func (a *requester) figures(some func(response) bool, from time.Time, limit time.Duration) figures {
	a.mu.Lock()
	defer a.mu.Unlock()
	f := figures{errs: map[string]int{}}
	var took []time.Duration
	for _, r := range a.responses {
		if !some(r) {
			continue
		}
		f.n++
		if r.err != nil {
			f.failed++
			f.errs[r.err.Error()]++
			f.failing = max(f.failing, r.took)
			r.took = requestTimeout
		} else if r.took > limit {
			f.slow = append(f.slow, ms(r.took))
		}
		took = append(took, r.took)
		if r.err != nil || r.took > limit {
			f.lastSlow = max(f.lastSlow, r.at.Sub(from), 1)
		}
	}
	slices.Sort(took)
	slices.Sort(f.slow)
	slices.Reverse(f.slow)
	f.slow = f.slow[:min(len(f.slow), 10)]
	f.p50, f.p99, f.longest = rank(took, 0.5), rank(took, 0.99), rank(took, 1)
	return f
}

// rank is the nearest-rank percentile of sorted values.
func rank(sorted []time.Duration, q float64) time.Duration {
	if len(sorted) == 0 {
		return 0
	}
	return sorted[max(0, int(math.Ceil(q*float64(len(sorted))))-1)]
}
