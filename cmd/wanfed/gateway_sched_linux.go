// SPDX-License-Identifier: MPL-2.0

package main

import (
	"os"
	"runtime"
	"strconv"

	"golang.org/x/sys/unix"
)

// shortSlice is for how long a thread of a gateway wants a core before others have their turn, in nanoseconds: the least that Linux
// takes (100 µs, since 6.12; older ones take no notice). Who asks for less has it sooner when a packet wakes it, and no more of it.
const shortSlice = 100_000

// hurry asks for short slices for all threads of this process. Those that are yet to come have what their maker has. A kernel that says
// no leaves things as they are.
func hurry() {
	tasks, _ := os.ReadDir("/proc/self/task")
	for _, t := range tasks {
		if tid, err := strconv.Atoi(t.Name()); err == nil {
			schedule(tid, func(a *unix.SchedAttr) { a.Runtime = shortSlice })
		}
	}
}

// giveWay has the caller's goroutine give way to those that move bytes, where there is no core for both. It keeps its thread, which
// ends with it.
func giveWay() {
	runtime.LockOSThread()
	schedule(0, func(a *unix.SchedAttr) { a.Runtime, a.Nice = 0, min(a.Nice+10, 19) })
}

// schedule changes how a thread is scheduled, if it is an ordinary one; zero is the caller's.
func schedule(tid int, change func(*unix.SchedAttr)) {
	a, err := unix.SchedGetAttr(tid, 0)
	if err != nil || a.Policy != unix.SCHED_NORMAL {
		return
	}
	change(a)
	_ = unix.SchedSetAttr(tid, a, 0)
}
