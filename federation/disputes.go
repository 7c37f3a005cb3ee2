// SPDX-License-Identifier: MPL-2.0

package federation

import (
	"cmp"
	"log/slog"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/wanfed/wanfed/tlsutil"
)

// Dispute is that a server of another datacenter names another primary than this one.
type PrimaryConflict struct {
	DC, Node, Primary string
	LastSeen          time.Time // last
}

// Own says whether it names its own datacenter: that is to be a primary, or is one already.
func (d PrimaryConflict) ClaimsItself() bool { return d.Primary == d.DC }

const (
	// disputeFor is how long a dispute is believed without being heard of. Who is not let into the pool tries every few seconds.
	disputeFor = 30 * time.Second
	// maxDisputes bounds what peers can make a server remember, and log.
	maxDisputes = 256
	// disputeNews is how often it is logged at most that a datacenter names yet another primary.
	disputeNews = 10 * time.Second
)

// Disputes remembers which datacenters name another primary. Its zero value cannot be used: see NewPrimaryConflicts. Its methods may be
// called from any goroutine.
type PrimaryConflicts struct {
	dc, primary string
	log         *slog.Logger

	mu  sync.Mutex
	all map[string]noted // by datacenter, the last heard
}

// noted is a dispute with what was logged of it last.
type noted struct {
	PrimaryConflict
	told string // its primary
	at   time.Time
}

// NewPrimaryConflicts is for a server of dc that is configured with primary.
func NewPrimaryConflicts(dc, primary string, log *slog.Logger) *PrimaryConflicts {
	return &PrimaryConflicts{dc: dc, primary: primary, log: log, all: map[string]noted{}}
}

// Note is for Admit. It logs what is new; own servers are seen in the LAN pool.
func (d *PrimaryConflicts) Record(node, dc, primary string) {
	if dc == d.dc || tlsutil.CheckLabel(primary) != nil || !d.news(PrimaryConflict{DC: dc, Node: node, Primary: primary, LastSeen: time.Now()}) {
		return
	}
	d.log.Warn("another datacenter names another primary", "datacenter", dc, "peer", WANName(node, dc), "its primary", primary, "primary", d.primary)
}

// news remembers x, if there is room, and says whether it is to be logged.
func (d *PrimaryConflicts) news(x PrimaryConflict) bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	was, known := d.all[x.DC]
	if !known && len(d.all) >= maxDisputes {
		d.sweepLocked()
	}
	if !known && len(d.all) >= maxDisputes {
		return false
	}
	now := noted{x, was.told, was.at}
	news := !known || x.LastSeen.Sub(was.LastSeen) >= disputeFor || x.Primary != was.told && x.LastSeen.Sub(was.at) >= disputeNews
	if news {
		now.told, now.at = x.Primary, x.LastSeen
	}
	d.all[x.DC] = now
	return news
}

// sweepLocked forgets disputes that do not last.
func (d *PrimaryConflicts) sweepLocked() {
	maps.DeleteFunc(d.all, func(_ string, x noted) bool { return time.Since(x.LastSeen) >= disputeFor })
}

// Now lists the disputes that last, by datacenter.
func (d *PrimaryConflicts) List() []PrimaryConflict {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.sweepLocked()
	var out []PrimaryConflict
	for _, x := range d.all {
		out = append(out, x.PrimaryConflict)
	}
	slices.SortFunc(out, func(a, b PrimaryConflict) int { return cmp.Compare(a.DC, b.DC) })
	return out
}
