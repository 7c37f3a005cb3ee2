// SPDX-License-Identifier: MPL-2.0

package testutil

import (
	"runtime"
	"sync"
	"testing"
	"testing/synctest"
)

// Bubble is synctest.Test. With the race detector, the process has one
// processor while a bubble runs: the timers of a bubble share one context of
// the race detector, and two processors that use it at a time end the process
// with a segmentation fault or "ThreadSanitizer: CHECK failed"
// (golang/go#78156). Remove this when that issue is closed. The race detector
// finds the same races: it compares what happens before what, not what
// happens at a time.
func Bubble(t *testing.T, f func(*testing.T)) {
	t.Helper()
	if raceDetector {
		bubbles.enter()
		defer bubbles.leave()
	}
	synctest.Test(t, f)
}

// bubbles counts the bubbles that run, and keeps the number of processors from
// before the first.
var bubbles processors

type processors struct {
	mu      sync.Mutex
	running int
	before  int
}

func (p *processors) enter() {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.running++; p.running == 1 {
		p.before = runtime.GOMAXPROCS(1)
	}
}

func (p *processors) leave() {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.running--; p.running == 0 {
		runtime.GOMAXPROCS(p.before)
	}
}
