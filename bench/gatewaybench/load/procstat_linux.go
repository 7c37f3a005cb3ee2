// SPDX-License-Identifier: MPL-2.0

package load

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"
	"time"
)

// userHz is USER_HZ, the unit of times in /proc. It is the same on all Linux
// platforms of Go.
const userHz = 100

// ProcessTree returns pid and the ids of its current descendants.
func ProcessTree(pid int) ([]int, error) {
	entries, err := os.ReadDir("/proc")
	if err != nil {
		return nil, err
	}
	children := map[int][]int{}
	for _, e := range entries {
		child, err := strconv.Atoi(e.Name())
		if err != nil {
			continue
		}
		f, err := statFields(child)
		if err != nil {
			continue // the process has exited
		}
		parent, _ := strconv.Atoi(f[1])
		children[parent] = append(children[parent], child)
	}
	family := []int{pid}
	for i := 0; i < len(family); i++ {
		family = append(family, children[family[i]]...)
	}
	return family, nil
}

// statFields returns the fields of /proc/PID/stat, starting with the state
// (proc(5): field 3).
func statFields(pid int) ([]string, error) {
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return nil, err
	}
	f := strings.Fields(string(b[bytes.LastIndexByte(b, ')')+1:]))
	if len(f) < 15 {
		return nil, fmt.Errorf("/proc/%d/stat has %d fields", pid, len(f))
	}
	return f, nil
}

// cpuTime returns the CPU time of the processes in seconds. user is the part
// spent in user mode.
func cpuTime(pids []int) (total, user float64, _ error) {
	for _, pid := range pids {
		f, err := statFields(pid)
		if err != nil {
			return 0, 0, fmt.Errorf("CPU time of process %d: %w", pid, err)
		}
		u, _ := strconv.ParseFloat(f[11], 64) // utime
		s, _ := strconv.ParseFloat(f[12], 64) // stime
		user += u / userHz
		total += (u + s) / userHz
	}
	return total, user, nil
}

// memoryUse returns the resident bytes and the number of open files of the
// processes.
func memoryUse(pids []int) (rss, files float64, _ error) {
	for _, pid := range pids {
		b, err := os.ReadFile(fmt.Sprintf("/proc/%d/statm", pid))
		if err != nil {
			return 0, 0, fmt.Errorf("memory of process %d: %w", pid, err)
		}
		f := strings.Fields(string(b))
		if len(f) < 2 {
			return 0, 0, fmt.Errorf("/proc/%d/statm is %q", pid, b)
		}
		pages, _ := strconv.ParseFloat(f[1], 64)
		rss += pages * float64(os.Getpagesize())
		open, err := os.ReadDir(fmt.Sprintf("/proc/%d/fd", pid))
		if err != nil {
			return 0, 0, err
		}
		files += float64(len(open))
	}
	return rss, files, nil
}

// busyCPU returns the CPU time in seconds that all processes have used, plus
// the time stolen by the host.
func busyCPU() (float64, error) {
	b, err := os.ReadFile("/proc/stat")
	if err != nil {
		return 0, err
	}
	line, _, _ := strings.Cut(string(b), "\n")
	var busy float64
	for i, s := range strings.Fields(line)[1:] {
		switch i {
		case 0, 1, 2, 5, 6, 7: // user, nice, system, irq, softirq, steal
			n, _ := strconv.ParseFloat(s, 64)
			busy += n / userHz
		}
	}
	return busy, nil
}

// clocks are the values of all clocks at one time. CPU times are in seconds:
// proxy and user are those of the proxy, bench those of clients and servers,
// busy that of the machine.
type clocks struct {
	at                       time.Time
	proxy, user, bench, busy float64
}

func (s Spec) readClocks() (c clocks, err error) {
	c.at = time.Now()
	if c.proxy, c.user, err = cpuTime(s.PIDs); err != nil {
		return c, err
	}
	if c.bench, _, err = cpuTime(append([]int{os.Getpid()}, s.ServerPIDs...)); err != nil {
		return c, err
	}
	c.busy, err = busyCPU()
	return c, err
}

// span is the difference between two values of clocks, in seconds. others is
// the number of cores that other processes used.
type span struct{ wall, proxy, user, others float64 }

func (s Spec) since(a clocks) (span, error) {
	b, err := s.readClocks()
	if err != nil {
		return span{}, err
	}
	sp := span{wall: b.at.Sub(a.at).Seconds(), proxy: b.proxy - a.proxy, user: b.user - a.user}
	sp.others = max(0, (b.busy-a.busy-sp.proxy-(b.bench-a.bench))/sp.wall)
	return sp, nil
}

// addCommon sets the figures that all kinds of load have.
func (f Figures) addCommon(sp span) {
	f[Others] = sp.others
	if sp.proxy > 0 {
		f[UserPart] = sp.user / sp.proxy
	}
}

// AwaitQuiet returns when all processes together use fewer cores than limit, or
// after timeout.
func AwaitQuiet(ctx context.Context, limit float64, timeout time.Duration) {
	const sample = 200 * time.Millisecond
	for end := time.Now().Add(timeout); time.Now().Before(end) && ctx.Err() == nil; {
		at := time.Now()
		a, err1 := busyCPU()
		if sleep(ctx, sample) != nil {
			return
		}
		b, err2 := busyCPU()
		if errors.Join(err1, err2) != nil || (b-a)/time.Since(at).Seconds() < limit {
			return
		}
	}
}
