// SPDX-License-Identifier: MPL-2.0

package gateway

import (
	"runtime"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

// maxBlocking is how long a worker may wait for events, or work, before other
// goroutines get its processor.
const maxBlocking = 2 * time.Millisecond

// wait takes the events that there are, or waits for some until something is due. While events come often it waits for a moment
// without the scheduler's knowledge: to tell it takes longer than most waits, and after a wait that it knows of a worker may have
// to wait for a processor.
func (w *worker) wait(events []unix.EpollEvent) (int, error) {
	timeout := w.due()
	moment := 0
	if w.lively {
		moment = int(maxBlocking / time.Millisecond)
	}
	if timeout >= 0 {
		moment = min(moment, timeout)
	}
	n, _, e := unix.RawSyscall6(unix.SYS_EPOLL_PWAIT, uintptr(w.ep), uintptr(unsafe.Pointer(unsafe.SliceData(events))), uintptr(len(events)), uintptr(moment), 0, 0)
	if e == 0 && n > 0 {
		return int(n), nil
	}
	w.lively = w.lively && time.Since(w.heard) < maxBlocking
	switch {
	case e == unix.EINTR: // the scheduler wants the processor: the return of this function lets it have it
		return 0, nil
	case e != 0 || moment == timeout:
		return count(n, e), nil
	}
	w.lively = false
	if timeout >= 0 {
		timeout -= moment
	}
	k, err := unix.EpollWait(w.ep, events, timeout)
	if w.yielded = time.Now(); err == unix.EINTR {
		return 0, nil
	}
	return k, err
}

// often is how many events in a row, none of them later than a wait after the one before, are the beginning of many.
const often = 4

// hear notes that events came.
func (w *worker) hear() {
	if w.now.Sub(w.heard) >= maxBlocking {
		w.burst = 0
	}
	w.burst, w.heard = w.burst+1, w.now
	w.lively = w.burst >= often
}

// due does what is due, and returns in how many milliseconds something will be; negative: nothing will.
func (w *worker) due() int {
	timeout := -1
	for _, left := range [...]time.Duration{w.expireHellos(), w.timers.expire(w), w.watchPeers(), w.reopen()} {
		if ms := int((left + time.Millisecond - 1) / time.Millisecond); left >= 0 && (timeout < 0 || ms < timeout) {
			timeout = ms
		}
	}
	if w.pairs == 0 && len(w.doors) == 0 || len(w.ready) > 0 {
		return 0
	}
	return timeout
}

// yield lets other goroutines have the processor now and then.
func (w *worker) yield() {
	if w.now.Sub(w.yielded) >= maxBlocking {
		w.yielded = w.now
		runtime.Gosched()
	}
}
