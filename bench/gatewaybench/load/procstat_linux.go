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

// userHz is USER_HZ of all Linux ports of Go: the unit of times in /proc.
const userHz = 100

// Family returns pid and the ids of all its descendants at this moment.
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
			continue // it has just ended
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

// statFields returns the fields of /proc/PID/stat from the state on (proc(5): field 3).
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

// cpuTime returns the CPU time that these processes have used, in seconds; user is the part that was not the kernel's.
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

// memoryUse returns the resident bytes and the open files of these processes.
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

// busyCPU returns the CPU time that the whole machine has used, or has not got from its host, in seconds.
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

// clocks are readings of all clocks at one moment.
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

// span is what passed between two readings.
type span struct{ wall, proxy, user, others float64 } // seconds; others in cores

func (s Spec) since(a clocks) (span, error) {
	b, err := s.readClocks()
	if err != nil {
		return span{}, err
	}
	sp := span{wall: b.at.Sub(a.at).Seconds(), proxy: b.proxy - a.proxy, user: b.user - a.user}
	sp.others = max(0, (b.busy-a.busy-sp.proxy-(b.bench-a.bench))/sp.wall)
	return sp, nil
}

// add notes what is told of each kind of load.
func (f Figures) addCommon(sp span) {
	f[Others] = sp.others
	if sp.proxy > 0 {
		f[UserPart] = sp.user / sp.proxy
	}
}

// AwaitQuiet returns once all processes together have used fewer cores than limit for a moment, or after patience.
func AwaitQuiet(ctx context.Context, limit float64, patience time.Duration) {
	const moment = 200 * time.Millisecond
	for end := time.Now().Add(patience); time.Now().Before(end) && ctx.Err() == nil; {
		at := time.Now()
		a, err1 := busyCPU()
		if sleep(ctx, moment) != nil {
			return
		}
		b, err2 := busyCPU()
		if errors.Join(err1, err2) != nil || (b-a)/time.Since(at).Seconds() < limit {
			return
		}
	}
}
