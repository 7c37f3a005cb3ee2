// SPDX-License-Identifier: MPL-2.0

package gateway

import (
	"slices"
	"sync"
	"time"
)

// maxFailures bounds the memory of failures, in addresses.
const maxFailures = 4096

// failures remembers for a while which upstream addresses failed, so that a dead one is not tried before a living one.
// After that while it takes its old place and the next connection finds out.
type failures struct {
	mu sync.Mutex
	at map[string]time.Time
}

func (f *failures) failed(addr string, now time.Time) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.at == nil {
		f.at = map[string]time.Time{}
	}
	if len(f.at) >= maxFailures {
		clear(f.at) // it is only a memory: forgetting costs one stagger each
	}
	f.at[addr] = now
}

func (f *failures) worked(addr string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	delete(f.at, addr)
}

// order returns the addresses from number start on, in a circle, those that failed within the time keep last, the longest ago
// first.
func (f *failures) order(addrs []string, start int, now time.Time, keep time.Duration) []string {
	f.mu.Lock()
	defer f.mu.Unlock()
	if len(addrs) == 1 || start == 0 && len(f.at) == 0 {
		return addrs
	}
	sorted := append(slices.Clone(addrs[start:]), addrs[:start]...)
	slices.SortStableFunc(sorted, func(a, b string) int { return f.lastLocked(a, now, keep).Compare(f.lastLocked(b, now, keep)) })
	return sorted
}

// lastLocked is when addr failed; the zero time if it did not, or too long ago to matter.
func (f *failures) lastLocked(addr string, now time.Time, keep time.Duration) time.Time {
	at, ok := f.at[addr]
	if ok && now.Sub(at) >= keep {
		delete(f.at, addr)
		return time.Time{}
	}
	return at
}
