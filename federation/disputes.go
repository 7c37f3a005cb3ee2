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
type Dispute struct {
	DC, Node, Primary string
	Heard             time.Time // last
}

// Own says whether it names its own datacenter: that is to be a primary, or is one already.
func (d Dispute) Own() bool { return d.Primary == d.DC }

const (
	// disputeFor is how long a dispute is believed without being heard of. Who is not let into the pool tries every few seconds.
	disputeFor = 30 * time.Second
	// maxDisputes bounds what peers can make a server remember, and log.
	maxDisputes = 256
	// disputeNews is how often it is logged at most that a datacenter names yet another primary.
	disputeNews = 10 * time.Second
)

// Disputes remembers which datacenters name another primary. Its zero value cannot be used: see NewDisputes. Its methods may be
// called from any goroutine.
type Disputes struct {
	dc, primary string
	log         *slog.Logger

	mu  sync.Mutex
	all map[string]noted // by datacenter, the last heard
}

// noted is a dispute with what was logged of it last.
type noted struct {
	Dispute
	told string // its primary
	at   time.Time
}

// NewDisputes is for a server of dc that is configured with primary.
func NewDisputes(dc, primary string, log *slog.Logger) *Disputes {
	return &Disputes{dc: dc, primary: primary, log: log, all: map[string]noted{}}
}

// Note is for Admit. It logs what is new; own servers are seen in the LAN pool.
func (d *Disputes) Note(node, dc, primary string) {
	if dc == d.dc || tlsutil.CheckLabel(primary) != nil || !d.news(Dispute{DC: dc, Node: node, Primary: primary, Heard: time.Now()}) {
		return
	}
	d.log.Warn("another datacenter names another primary", "datacenter", dc, "peer", WANName(node, dc), "its primary", primary, "primary", d.primary)
}

// news remembers x, if there is room, and says whether it is to be logged.
func (d *Disputes) news(x Dispute) bool {
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
	news := !known || x.Heard.Sub(was.Heard) >= disputeFor || x.Primary != was.told && x.Heard.Sub(was.at) >= disputeNews
	if news {
		now.told, now.at = x.Primary, x.Heard
	}
	d.all[x.DC] = now
	return news
}

// sweepLocked forgets disputes that do not last.
func (d *Disputes) sweepLocked() {
	maps.DeleteFunc(d.all, func(_ string, x noted) bool { return time.Since(x.Heard) >= disputeFor })
}

// Now lists the disputes that last, by datacenter.
func (d *Disputes) Now() []Dispute {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.sweepLocked()
	var out []Dispute
	for _, x := range d.all {
		out = append(out, x.Dispute)
	}
	slices.SortFunc(out, func(a, b Dispute) int { return cmp.Compare(a.DC, b.DC) })
	return out
}
