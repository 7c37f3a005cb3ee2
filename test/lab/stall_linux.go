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

// Stalls notes when this machine stood still. On each processor a thread sleeps stallStep and looks how much longer it was: it goes
// before all ordinary work, see sched(7), so that what delays it by more than a moment is no work of this machine, but the host of a
// virtual one, which gave the processor to others.
type Stalls struct {
	cancel context.CancelFunc
	wg     sync.WaitGroup

	mu    sync.Mutex
	all   []Stall
	looks map[int]time.Time // when the thread of a processor looked last: it may stand still now
}

// Stall is a time in which a processor did nothing.
type Stall struct {
	At   time.Time // its end
	Took time.Duration
	CPU  int
}

func (s Stall) String() string {
	if s.Took == 0 {
		return fmt.Sprint("less than ", stallLeast)
	}
	return fmt.Sprintf("%v on processor %d until %s", s.Took.Round(time.Millisecond), s.CPU, s.At.Format("15:04:05.000"))
}

const (
	stallStep = 5 * time.Millisecond
	// stallLeast is what is noted; shorter delays are the kernel's and the runtime's.
	stallLeast = 10 * time.Millisecond
	// stallPriority is above the emulated WAN's.
	stallPriority = 2
)

// WatchStalls begins to note. It ends when the test does.
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
	_ = unix.SchedSetAttr(0, &unix.SchedAttr{Policy: unix.SCHED_RR, Flags: unix.SCHED_FLAG_RESET_ON_FORK, Priority: stallPriority}, 0)
	var one unix.CPUSet
	one.Set(cpu)
	_ = unix.SchedSetaffinity(0, &one) // after the priority: else the processor might not be given to this thread for long
	step := unix.NsecToTimespec(int64(stallStep))
	for last := time.Now(); ctx.Err() == nil; {
		_ = unix.Nanosleep(&step, nil) // not the runtime's timers, which are late when its processors are busy
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

// Worst is the longest stall that was not over before from; zero: there was none of 10 ms.
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

// Awake is how long it is since from, without the times in which a processor did nothing: what a test may ask of a program that
// has to share this machine with others.
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
