// SPDX-License-Identifier: MPL-2.0

package main

import (
	"runtime"
	"testing"

	"golang.org/x/sys/unix"
)

// TestGiveWay has only the thread that works aside give way: one that starts a new process must not, since that would too.
func TestGiveWay(t *testing.T) {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	attr := func() *unix.SchedAttr {
		a, err := unix.SchedGetAttr(0, 0)
		if err != nil {
			t.Error(err)
			return &unix.SchedAttr{}
		}
		return a
	}
	before := attr()
	if before.Policy != unix.SCHED_NORMAL {
		t.Skip("the test itself is not scheduled in the ordinary way")
	}
	var other unix.SchedAttr
	do, end := startAside()
	do(func() { other = *attr() })
	end()
	if want := min(before.Nice+10, 19); other.Nice != want {
		t.Errorf("nice %d aside, want %d", other.Nice, want)
	}
	if now := attr(); now.Nice != before.Nice {
		t.Errorf("nice %d beside it, was %d", now.Nice, before.Nice)
	}
}
