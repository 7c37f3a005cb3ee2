// SPDX-License-Identifier: MPL-2.0

package gateway

import (
	"sync"
	"time"
)

// drain is how long open connections may go on once no more come in.
type drain struct {
	mu   sync.Mutex
	time time.Duration
	last *time.Timer // while connections are being drained
}

// SetDrain changes Config.Drain. While connections are being drained already, they may go on for d from now on.
func (p *Proxy) SetDrain(d time.Duration) {
	p.drain.mu.Lock()
	defer p.drain.mu.Unlock()
	p.drain.time = d
	if p.drain.last != nil && p.drain.last.Stop() { // else it is over
		p.drain.last.Reset(d)
	}
}

// begin starts the clock. The channel is closed when the time is over. stop gives the clock back.
func (d *drain) begin() (over <-chan struct{}, stop func()) {
	d.mu.Lock()
	defer d.mu.Unlock()
	c := make(chan struct{})
	d.last = time.AfterFunc(d.time, func() { close(c) })
	return c, func() {
		d.mu.Lock()
		defer d.mu.Unlock()
		d.last.Stop()
	}
}
