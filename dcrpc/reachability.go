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

// unreachableAfter is the time without a working path after which a datacenter
// is unreachable. A packet link switches to another path in less time, so a
// switch does not make the datacenter unreachable.
const unreachableAfter = time.Second

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

func newReachability() *reachability { return &reachability{byDC: map[string]Reachability{}} }

// load returns the values and a channel that is closed at the next change.
func (r *reachability) load() (map[string]Reachability, <-chan struct{}) {
	r.mu.Lock()
	defer r.mu.Unlock()
	return maps.Clone(r.byDC), r.changed.Wait()
}

// maxKeptOpen is the largest number of unreachable datacenters to which a Client keeps
// connections. If more are unreachable, it keeps none: this server or its gateways are
// at fault or busy, and so many connections of all servers would keep the machine busy.
// The Prober then detects that a datacenter is reachable again.
const maxKeptOpen = 8

// isOneOfFew reports whether dc is unreachable, and at most maxKeptOpen are.
func (r *reachability) isOneOfFew(dc string) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	if !r.byDC[dc].Unreachable {
		return false
	}
	unreachable := 0
	for _, other := range r.byDC {
		if other.Unreachable {
			unreachable++
		}
	}
	return unreachable <= maxKeptOpen
}

func (r *reachability) set(dc string, reachable bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	value := r.byDC[dc]
	if value.Unreachable != reachable {
		return
	}
	if value.Unreachable = !reachable; reachable {
		value.Recoveries++
	}
	r.byDC[dc] = value
	r.changed.Notify()
}

// updateUnreachable updates the reachability of all datacenters at time now.
// failing lists the datacenters that have no working path at that time. since
// maps each of them to the time of its first failure, and is updated.
// updateUnreachable returns the unreachable datacenters, and the time until
// another failing datacenter becomes unreachable.
func (c *Client) updateUnreachable(
	since map[string]time.Time, failing []string, now time.Time,
) (unreachable []string, wait time.Duration) {
	wait = time.Hour
	for _, dc := range failing {
		if since[dc].IsZero() {
			since[dc] = now
		}
		if remaining := unreachableAfter - now.Sub(since[dc]); remaining > 0 {
			wait = min(wait, remaining)
			continue
		}
		c.reach.set(dc, false)
		unreachable = append(unreachable, dc)
	}
	for dc := range since {
		if !slices.Contains(failing, dc) {
			delete(since, dc)
			c.reach.set(dc, true)
			c.events.Notify(dc)
		}
	}
	return unreachable, wait
}

// bookChanged notifies waiting dials of datacenters whose paths changed. It
// closes connections to datacenters that were deleted.
func (c *Client) bookChanged(old, now *wanfed.AddressBook) {
	for dc, paths := range now.Paths {
		if !slices.Equal(paths, old.Paths[dc]) {
			c.events.Notify(dc)
		}
	}
	if !maps.Equal(now.Servers, old.Servers) {
		c.events.Notify(c.cfg.DC)
	}
	for _, cc := range c.all() {
		if dc := cc.key.dc; dc != c.cfg.DC && len(now.Paths[dc]) == 0 && len(old.Paths[dc]) > 0 {
			c.replace(cc, 0)
		}
	}
}
