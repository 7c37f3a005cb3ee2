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

// The tests of this file's kind break the path between datacenters that are 80
// ms apart, while questions are asked across it, and say what that did to the
// questions and to the WAN pool.
const (
	oneWay = 40 * time.Millisecond
	// askEvery and askLimit: questions are asked at a fixed pace, whether or
	// not earlier ones were answered.
	askEvery = 100 * time.Millisecond
	askLimit = 10 * time.Second
	// maxRise is what the slowest hundredth of the questions may take more
	// after a fault than before.
	maxRise = 300 * time.Millisecond
	// backAlive bounds how long members are not alive once their path is whole.
	backAlive = 3 * time.Second
)

// long says that there is time: longer faults, each in a lab of its own and
// alone on the machine.
func long() bool { return os.Getenv("WANFED_CHAOS") != "" }

// byForm returns the one for the short form or the one for the long form.
func byForm(short, ifLong time.Duration) time.Duration {
	if long() {
		return ifLong
	}
	return short
}

// alongside lets the short form share the machine.
func alongside(t *testing.T) {
	t.Helper()
	if !long() {
		t.Parallel()
	}
}

// answer is one question's.
type answer struct {
	at   time.Time // when it was due to be asked
	took time.Duration
	err  error
}

// asker asks one server about another datacenter until it is stopped.
type asker struct {
	name   string
	cancel context.CancelFunc
	wg     sync.WaitGroup

	mu      sync.Mutex
	answers []answer
}

// askAcross starts asking s for the leader of dc.
func askAcross(t *testing.T, s *lab.Node, dc string) *asker {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	a := &asker{name: s.WANName() + " asks " + dc, cancel: cancel}
	t.Cleanup(a.stop)
	a.wg.Go(func() {
		tick := time.NewTicker(askEvery)
		defer tick.Stop()
		for {
			select {
			case <-tick.C:
				at := time.Now()
				a.wg.Go(func() { a.ask(s, dc, at) })
			case <-ctx.Done():
				return
			}
		}
	})
	return a
}

func (a *asker) ask(s *lab.Node, dc string, at time.Time) {
	ctx, cancel := context.WithTimeout(context.Background(), askLimit)
	defer cancel()
	var leader string
	err := s.Get(ctx, "/v1/status/leader?dc="+dc, &leader)
	a.mu.Lock()
	defer a.mu.Unlock()
	a.answers = append(a.answers, answer{at, time.Since(at), err})
}

// stop waits for the answers that are still due. It may be called more than
// once.
func (a *asker) stop() {
	a.cancel()
	a.wg.Wait()
}

// figures sum up the answers of a time.
type figures struct {
	n, failed         int
	p50, p99, longest time.Duration
	failing           time.Duration   // how long the failed ones took until they failed, at most
	bad               time.Duration   // when the last question was asked that failed or took too long, after the beginning; 0: none
	errs              map[string]int  // of those that failed
	slow              []time.Duration // the slowest that were answered, the worst first
}

func (f figures) String() string {
	s := fmt.Sprintf("%d asked, %d failed, p50 %v, p99 %v, longest %v", f.n, f.failed, ms(f.p50), ms(f.p99), ms(f.longest))
	if f.bad > 0 {
		s += fmt.Sprintf(", the last bad one asked after %v; slowest %v", ms(f.bad), f.slow)
	}
	if f.failed > 0 {
		s += fmt.Sprintf("; failures, after %v at most: %v", ms(f.failing), f.errs)
	}
	return s
}

func ms(d time.Duration) time.Duration { return d.Round(time.Millisecond) }

// answeredBefore picks the questions that were answered before to, duringTime
// those that were under way at from or asked after it, but before to.
func answeredBefore(to time.Time) func(answer) bool {
	return func(r answer) bool { return r.at.Add(r.took).Before(to) }
}

func duringTime(from, to time.Time) func(answer) bool {
	return func(r answer) bool { return r.at.Before(to) && r.at.Add(r.took).After(from) }
}

// figures of some of the questions. A failed one counts as if it had taken
// askLimit. limit is what is not bad.
func (a *asker) figures(some func(answer) bool, from time.Time, limit time.Duration) figures {
	a.mu.Lock()
	defer a.mu.Unlock()
	f := figures{errs: map[string]int{}}
	var took []time.Duration
	for _, r := range a.answers {
		if !some(r) {
			continue
		}
		f.n++
		if r.err != nil {
			f.failed++
			f.errs[r.err.Error()]++
			f.failing = max(f.failing, r.took)
			r.took = askLimit
		} else if r.took > limit {
			f.slow = append(f.slow, ms(r.took))
		}
		took = append(took, r.took)
		if r.err != nil || r.took > limit {
			f.bad = max(f.bad, r.at.Sub(from), 1)
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
