// SPDX-License-Identifier: MPL-2.0

package demo

import (
	"fmt"
	"io"
	"sync"
	"time"
)

// step is something that happens once for each of several processes.
type step int

const (
	stepServers step = iota
	stepGateways
	stepMembers
	stepStates
	stepRequest
	steps
)

// key is the step's name in JSON, text what it means when it is reached.
var stepNames = [steps]struct{ key, text string }{
	stepServers:  {"servers", "all servers listen"},
	stepGateways: {"gateways", "all gateways listen"},
	stepMembers:  {"members", "every server sees every server of every datacenter alive"},
	stepStates:   {"states", "every server has the federation state of every datacenter"},
	stepRequest:  {"request", "every server had requests answered by every other datacenter"},
}

// progress tells what happens, with the time since the first process was started. Any goroutine may use it.
type progress struct {
	w io.Writer // nil: say nothing

	mu      sync.Mutex
	began   time.Time
	counts  [steps]int
	reached [steps]time.Duration // 0: not yet
}

// begin sets the clock to zero.
func (p *progress) begin() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.began = time.Now()
}

func (p *progress) say(format string, args ...any) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.sayLocked(time.Since(p.began), format, args...)
}

func (p *progress) sayLocked(at time.Duration, format string, args ...any) {
	if p.w != nil {
		fmt.Fprintf(p.w, "%7.3f s  %s\n", at.Seconds(), fmt.Sprintf(format, args...))
	}
}

// plain says something without a time.
func (p *progress) plain(format string, args ...any) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.w != nil {
		fmt.Fprintf(p.w, format+"\n", args...)
	}
}

// reach counts one more process that has done s. With the last, the n-th, the step is reached.
func (p *progress) reach(s step, n int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.counts[s]++; p.counts[s] == n {
		p.reached[s] = time.Since(p.began)
		p.sayLocked(p.reached[s], "* %s", stepNames[s].text)
	}
}

// timings returns the time of each step reached, in milliseconds, by its key.
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
