// SPDX-License-Identifier: MPL-2.0

package federation

import (
	"fmt"
	"maps"
	"sync"
	"time"

	"golang.org/x/time/rate"
)

// Limits of the federation states that one datacenter may write. A state has
// about 300 bytes per gateway.
const (
	applyBurst = 4 << 20  // bytes at once
	applyRate  = 32 << 10 // bytes per second
	// applyCost is what a smaller state counts: each one is a write of Raft, and a
	// message to all datacenters. It bounds the rate to 32 per second.
	applyCost = 1 << 10 // bytes
	// maxApplyDatacenters bounds the datacenters whose writes are counted. Above
	// it, the datacenters with a full burst are evicted.
	maxApplyDatacenters = 1 << 14
)

// applyLimit limits the bytes of the federation states that each datacenter
// writes. Each accepted state is copied to all datacenters. It is safe for
// concurrent use. The zero value is ready.
type applyLimit struct {
	mu       sync.Mutex
	limiters map[string]*rate.Limiter // by datacenter of the caller
}

// take counts a state of size bytes. It returns an error, and counts nothing, if
// dc has written too much.
func (l *applyLimit) take(dc string, size int, now time.Time) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.limiters == nil {
		l.limiters = map[string]*rate.Limiter{}
	}
	if len(l.limiters) >= maxApplyDatacenters {
		maps.DeleteFunc(l.limiters, func(_ string, lim *rate.Limiter) bool { return lim.TokensAt(now) >= applyBurst })
	}
	if l.limiters[dc] == nil {
		l.limiters[dc] = rate.NewLimiter(applyRate, applyBurst)
	}
	r := l.limiters[dc].ReserveN(now, max(size, applyCost))
	if r.OK() && r.DelayFrom(now) == 0 {
		return nil
	}
	wait := r.DelayFrom(now)
	r.CancelAt(now)
	return fmt.Errorf("servers of %s write too many federation states: %d MiB at once and %d KiB per second are "+
		"accepted; retry in %v", dc, applyBurst>>20, applyRate>>10, (wait + time.Second).Truncate(time.Second))
}
