// SPDX-License-Identifier: MPL-2.0

package lab

import (
	"context"
	"fmt"
	"runtime"
	"slices"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// Stalls records when this machine stalled. On each processor a real-time
// thread (sched(7)) sleeps for stallStep and measures how late it wakes.
// Ordinary work of this machine cannot delay it. A longer delay means that the
// host of this virtual machine ran something else.
type Stalls struct {
	cancel context.CancelFunc
	wg     sync.WaitGroup

	mu    sync.Mutex
	all   []Stall
	looks map[int]time.Time // last wake-up of the thread of each processor
}

// Stall is an interval in which a processor did not run.
type Stall struct {
	At   time.Time // end of the interval
	Took time.Duration
	CPU  int
}

func (s Stall) String() string {
	if s.Took == 0 {
		return fmt.Sprint("less than ", stallLeast)
	}
	return fmt.Sprintf("%v on processor %d until %s", s.Took.Round(time.Millisecond), s.CPU,
		s.At.Format("15:04:05.000"))
}

const (
	stallStep = 5 * time.Millisecond
	// stallLeast is the shortest recorded delay. Shorter ones come from the
	// kernel and the Go runtime.
	stallLeast = 10 * time.Millisecond
	// stallPriority is higher than that of the emulated WAN.
	stallPriority = 2
)

// WatchStalls records stalls until the test ends.
func WatchStalls(t testing.TB) *Stalls {
	t.Helper()
	var cpus unix.CPUSet
	if err := unix.SchedGetaffinity(0, &cpus); err != nil {
		t.Fatalf("processors of this process: %v", err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	s := &Stalls{cancel: cancel, looks: map[int]time.Time{}}
	t.Cleanup(func() {
		s.cancel()
		s.wg.Wait()
	})
	for cpu := range len(cpus) * 64 {
		if cpus.IsSet(cpu) {
			s.wg.Go(func() { s.watch(ctx, cpu) })
		}
	}
	return s
}

func (s *Stalls) watch(ctx context.Context, cpu int) {
	runtime.LockOSThread() // not unlocked: the thread ends with the goroutine, and its priority with it
	_ = unix.SchedSetAttr(0, &unix.SchedAttr{Policy: unix.SCHED_RR, Flags: unix.SCHED_FLAG_RESET_ON_FORK,
		Priority: stallPriority}, 0)
	var one unix.CPUSet
	one.Set(cpu)
	_ = unix.SchedSetaffinity(0, &one) // after the priority: a busy processor would delay an ordinary thread
	step := unix.NsecToTimespec(int64(stallStep))
	for last := time.Now(); ctx.Err() == nil; {
		_ = unix.Nanosleep(&step, nil) // timers of the Go runtime are late on busy processors
		now := time.Now()
		s.mu.Lock()
		if late := now.Sub(last) - stallStep; late >= stallLeast {
			s.all = append(s.all, Stall{now, late, cpu})
		}
		s.looks[cpu] = now
		s.mu.Unlock()
		last = now
	}
}

// Worst returns the longest stall that ended after from. It returns the zero
// value if there was none of at least 10 ms.
func (s *Stalls) Worst(from time.Time) (worst Stall) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, one := range s.all {
		if one.At.After(from) && one.Took > worst.Took {
			worst = one
		}
	}
	return worst
}

// Awake returns the time since from without the stalls. A test with a bound on
// time uses it on a machine that it shares.
func (s *Stalls) Awake(from time.Time) time.Duration {
	s.mu.Lock()
	defer s.mu.Unlock()
	now, all := time.Now(), slices.Clone(s.all)
	for cpu, last := range s.looks {
		if late := now.Sub(last) - stallStep; late >= stallLeast {
			all = append(all, Stall{now, late, cpu})
		}
	}
	slices.SortFunc(all, func(a, b Stall) int { return a.begin().Compare(b.begin()) })
	awake := now.Sub(from)
	for _, one := range all {
		if one.begin().After(from) {
			from = one.begin()
		}
		if one.At.After(from) {
			awake -= one.At.Sub(from)
			from = one.At
		}
	}
	return awake
}

func (s Stall) begin() time.Time { return s.At.Add(-s.Took) }
