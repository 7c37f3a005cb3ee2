// SPDX-License-Identifier: MPL-2.0

package dcrpc

import (
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/wanfed/wanfed/internal/broadcast"
	"github.com/wanfed/wanfed/wanfed"
)

// lostAfter is the time without a working path after which a datacenter counts
// as lost. A packet link that lost one path switches to another path within
// that time.
const lostAfter = time.Second

// Reachability reports whether any server of a datacenter can be reached.
type Reachability struct {
	Unreachable bool // the last attempt failed, or no path works
	Recoveries  int  // number of times the datacenter became reachable again
}

// reachability holds the Reachability of each datacenter.
type reachability struct {
	changed broadcast.Broadcast

	mu   sync.Mutex
	byDC map[string]Reachability
}

func newReachability() *reachability {
	return &reachability{byDC: map[string]Reachability{}}
}

func (r *reachability) load() (map[string]Reachability, <-chan struct{}) {
	r.mu.Lock()
	defer r.mu.Unlock()
	return maps.Clone(r.byDC), r.changed.Wait()
}

func (r *reachability) isLost(dc string) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.byDC[dc].Unreachable
}

func (r *reachability) set(dc string, reachable bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	now := r.byDC[dc]
	if now.Unreachable != reachable {
		return
	}
	if now.Unreachable = !reachable; reachable {
		now.Recoveries++
	}
	r.byDC[dc] = now
	r.changed.Notify()
}

// updateUnreachable updates since, which maps each datacenter without a working
// path to the start of that state. The argument dcs lists the datacenters
// without a working path now. It returns the lost datacenters, and the time
// until the next datacenter may count as lost.
func (c *Client) updateUnreachable(since map[string]time.Time, dcs []string, now time.Time) (lost []string, wait time.Duration) {
	wait = time.Hour
	for _, dc := range dcs {
		if since[dc].IsZero() {
			since[dc] = now
		}
		if left := lostAfter - now.Sub(since[dc]); left > 0 {
			wait = min(wait, left)
			continue
		}
		c.reach.set(dc, false)
		lost = append(lost, dc)
	}
	for dc := range since {
		if !slices.Contains(dcs, dc) {
			delete(since, dc)
			c.reach.set(dc, true)
			c.news.Notify(dc)
		}
	}
	return lost, wait
}

// bookChanged notifies waiting dials of datacenters whose paths changed. It
// closes connections to datacenters that were deleted.
func (c *Client) bookChanged(old, now *wanfed.AddressBook) {
	for dc, paths := range now.Paths {
		if !slices.Equal(paths, old.Paths[dc]) {
			c.news.Notify(dc)
		}
	}
	if !maps.Equal(now.Servers, old.Servers) {
		c.news.Notify(c.cfg.DC)
	}
	for _, cc := range c.all() {
		if dc := cc.key.dc; dc != c.cfg.DC && len(now.Paths[dc]) == 0 && len(old.Paths[dc]) > 0 {
			c.replace(cc, 0)
		}
	}
}
