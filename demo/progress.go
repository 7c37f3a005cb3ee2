// SPDX-License-Identifier: MPL-2.0

package demo

import (
	"fmt"
	"io"
	"sync"
	"time"
)

// step is a step that each of several processes completes once.
type step int

const (
	stepServers step = iota
	stepGateways
	stepMembers
	stepStates
	stepRequest
	steps
)

// stepNames has for each step its name in JSON, and what its completion means.
var stepNames = [steps]struct{ key, text string }{
	stepServers:  {"servers", "all servers listen"},
	stepGateways: {"gateways", "all gateways listen"},
	stepMembers:  {"members", "every server sees every server of every datacenter alive"},
	stepStates:   {"states", "every server has the federation state of every datacenter"},
	stepRequest:  {"request", "every server had requests answered by every other datacenter"},
}

// progress prints events with the time since the first process started. It may be
// used from any goroutine.
type progress struct {
	w io.Writer // nil: print nothing

	mu      sync.Mutex
	began   time.Time
	counts  [steps]int
	reached [steps]time.Duration // 0: not reached yet
}

// begin resets the clock.
func (p *progress) begin() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.began = time.Now()
}

func (p *progress) printf(format string, args ...any) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.printLocked(time.Since(p.began), format, args...)
}

func (p *progress) printLocked(at time.Duration, format string, args ...any) {
	if p.w != nil {
		fmt.Fprintf(p.w, "%7.3f s  %s\n", at.Seconds(), fmt.Sprintf(format, args...))
	}
}

// plain prints a line without a time.
func (p *progress) plain(format string, args ...any) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.w != nil {
		fmt.Fprintf(p.w, format+"\n", args...)
	}
}

// reach counts a process that has completed s. The n-th process completes the
// step.
func (p *progress) reach(s step, n int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.counts[s]++; p.counts[s] == n {
		p.reached[s] = time.Since(p.began)
		p.printLocked(p.reached[s], "* %s", stepNames[s].text)
	}
}

// timings returns the time of each step that was reached, in milliseconds, by its
// key.
func (p *progress) timings() map[string]int64 {
	p.mu.Lock()
	defer p.mu.Unlock()
	out := make(map[string]int64, steps)
	for s, d := range p.reached {
		if d > 0 {
			out[stepNames[s].key] = d.Milliseconds()
		}
	}
	return out
}
