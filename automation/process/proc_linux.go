// SPDX-License-Identifier: MPL-2.0

package process

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// ticksPerSecond is USER_HZ, the unit of times in /proc. It is 100 on every
// architecture that Go supports.
const ticksPerSecond = 100

func bootID() (string, error) {
	b, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
	return strings.TrimSpace(string(b)), err
}

// startTicks returns the time from the boot to the start of a process.
func startTicks(pid int) (uint64, error) {
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return 0, err
	}
	// The second field is a name in brackets that may contain spaces and
	// brackets. The start is field 22.
	fields := bytes.Fields(b[bytes.LastIndexByte(b, ')')+1:])
	if len(fields) < 20 {
		return 0, fmt.Errorf("/proc/%d/stat has %d fields after the name", pid, len(fields))
	}
	return strconv.ParseUint(string(fields[19]), 10, 64)
}

// sinceBoot returns the time since the boot. Changes of the wall clock do not
// affect it.
func sinceBoot() (time.Duration, error) {
	var now unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_BOOTTIME, &now); err != nil {
		return 0, fmt.Errorf("read the time since the boot: %w", err)
	}
	return time.Duration(now.Nano()), nil
}

// age returns the time since ticks after the boot.
func age(ticks uint64) (time.Duration, error) {
	now, err := sinceBoot()
	return now - time.Duration(ticks)*time.Second/ticksPerSecond, err
}

// processes calls f for each process of a run. f may signal the process: p
// cannot refer to another process with the same id.
func processes(run string, f func(p *os.Process)) {
	mark := []byte(RunVariable + "=" + run + "\x00")
	paths, _ := filepath.Glob("/proc/[0-9]*/environ") // fails only for a bad pattern
	for _, path := range paths {
		pid, err := strconv.Atoi(filepath.Base(filepath.Dir(path)))
		if err != nil || pid == os.Getpid() {
			continue
		}
		p, err := os.FindProcess(pid) // opens a pidfd
		if err != nil {
			continue
		}
		if env, err := os.ReadFile(path); err == nil && (bytes.HasPrefix(env, mark) || bytes.Contains(env, append([]byte{0}, mark...))) {
			f(p)
		}
		_ = p.Release()
	}
}

// leader returns the first process of a run that leads a process group, or 0 if
// none is alive.
func leader(run string) (pid int, ticks uint64) {
	processes(run, func(p *os.Process) {
		if group, err := unix.Getpgid(p.Pid); err != nil || group != p.Pid {
			return
		}
		if t, err := startTicks(p.Pid); err == nil && (pid == 0 || t < ticks || t == ticks && p.Pid < pid) {
			pid, ticks = p.Pid, t
		}
	})
	return pid, ticks
}

// kill kills all processes of a run, and returns when they have ended, or after
// killTime.
func kill(run string) {
	for deadline := time.Now().Add(killTime); time.Now().Before(deadline); time.Sleep(time.Millisecond) {
		alive := false
		processes(run, func(p *os.Process) { alive = p.Kill() == nil || alive })
		if !alive {
			return
		}
	}
}

// MemoryFile returns a file that exists only in memory, for a program that must
// not write secrets to disk. The caller closes it.
func MemoryFile(name string) (*os.File, error) {
	fd, err := unix.MemfdCreate(name, unix.MFD_CLOEXEC)
	if err != nil {
		return nil, fmt.Errorf("create a file in memory: %w", err)
	}
	return os.NewFile(uintptr(fd), name), nil
}
