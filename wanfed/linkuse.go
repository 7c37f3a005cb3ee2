// SPDX-License-Identifier: MPL-2.0

package wanfed

import (
	"maps"
	"slices"
	"sync"
	"time"
)

// linkUses is when each connected link was last used, the latest first, as it was at a moment of the last second.
type linkUses struct {
	mu    sync.Mutex
	at    time.Time
	times []time.Time
}

// unneeded says whether the connection is to be closed for want of packets: after a long time, or when the server has many
// others that were used later. Consul's servers do not wait long.
func (lc *linkConn) unneeded(now time.Time) bool {
	tm, unused := lc.l.t.tm, now.Sub(lc.used)
	switch {
	case unused >= tm.linkIdle, unused >= tm.quiet && lc.consul:
		return true
	case unused >= tm.quiet:
		return lc.l.t.usedLater(lc.l, tm.quietLinks, now)
	}
	return unused >= tm.spare && lc.l.t.usedLater(lc.l, 2*tm.quietLinks, now)
}

// usedLater says whether packets were pushed to n connected links later than to l.
func (t *Tunnel) usedLater(l *link, n int, now time.Time) bool {
	last, _ := l.lastUse()
	t.uses.mu.Lock()
	defer t.uses.mu.Unlock()
	if t.uses.at.IsZero() || now.Sub(t.uses.at) >= time.Second {
		t.uses.at, t.uses.times = now, t.lastUses()
	}
	return len(t.uses.times) >= n && t.uses.times[n-1].After(last)
}

// lastUses is when each of the connected links was used last, the latest first.
func (t *Tunnel) lastUses() (times []time.Time) {
	t.mu.RLock()
	links := slices.Collect(maps.Values(t.links))
	t.mu.RUnlock()
	for _, l := range links {
		if at, connected := l.lastUse(); connected {
			times = append(times, at)
		}
	}
	slices.SortFunc(times, func(a, b time.Time) int { return b.Compare(a) })
	return times
}

func (l *link) lastUse() (at time.Time, connected bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.pushed, !l.st.ConnectedSince.IsZero()
}
