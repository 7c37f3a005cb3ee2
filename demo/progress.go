// SPDX-License-Identifier: MPL-2.0

package demo

import (
	"fmt"
	"io"
	"sync"
	"time"
)

// step is a step of the demo, which each server or gateway completes once.
type step int

const (
	stepServers step = iota
	stepGateways
	stepMembers
	stepStates
	stepRequest
	steps // number of steps
)

// stepNames has the name of each step in JSON, and the text for its completion.
var stepNames = [steps]struct{ key, text string }{
	stepServers:  {"servers", "all servers listen"},
	stepGateways: {"gateways", "all gateways listen"},
	stepMembers:  {"members", "every server sees every server of every datacenter alive"},
	stepStates:   {"states", "every server has the federation state of every datacenter"},
	stepRequest:  {"request", "every server got responses from every other datacenter"},
}

// progress prints events with the time since the first process started. It is
// safe for concurrent use.
type progress struct {
	w io.Writer // nil: print nothing

	mu      sync.Mutex
	began   time.Time
	counts  [steps]int
	reached [steps]time.Duration // 0: not complete
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
	p.printLocked(format, args...)
}

// printLocked prints a line with the time since begin, and returns that time.
func (p *progress) printLocked(format string, args ...any) time.Duration {
	elapsed := time.Since(p.began)
	if p.w != nil {
		fmt.Fprintf(p.w, "%7.3f s  %s\n", elapsed.Seconds(), fmt.Sprintf(format, args...))
	}
	return elapsed
}

// plain prints a line without a time.
func (p *progress) plain(format string, args ...any) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.w != nil {
		fmt.Fprintf(p.w, format+"\n", args...)
	}
}

// reach counts a process that has completed s. Step s is complete after n
// processes.
func (p *progress) reach(s step, n int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.counts[s]++; p.counts[s] == n {
		p.reached[s] = p.printLocked("* %s", stepNames[s].text)
	}
}

// timings returns the time of each completed step in milliseconds, by key.
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
