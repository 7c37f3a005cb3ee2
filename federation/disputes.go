// SPDX-License-Identifier: MPL-2.0

package federation

import (
	"cmp"
	"log/slog"
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
	// maxDisputes bounds what peers can make a server remember.
	maxDisputes = 256
)

// Disputes remembers which datacenters name another primary. Its zero value cannot be used: see NewDisputes. Its methods may be
// called from any goroutine.
type Disputes struct {
	dc, primary string
	log         *slog.Logger

	mu  sync.Mutex
	all map[string]Dispute // by datacenter, the last heard
}

// NewDisputes is for a server of dc that is configured with primary.
func NewDisputes(dc, primary string, log *slog.Logger) *Disputes {
	return &Disputes{dc: dc, primary: primary, log: log, all: map[string]Dispute{}}
}

// Note is for Admit. It logs what is new; own servers are seen in the LAN pool.
func (d *Disputes) Note(node, dc, primary string) {
	if dc == d.dc || tlsutil.CheckLabel(primary) != nil {
		return
	}
	now := Dispute{DC: dc, Node: node, Primary: primary, Heard: time.Now()}
	d.mu.Lock()
	was, known := d.all[dc]
	if known || len(d.all) < maxDisputes {
		d.all[dc] = now
	}
	d.mu.Unlock()
	if known && was.Primary == primary && now.Heard.Sub(was.Heard) < disputeFor {
		return
	}
	d.log.Warn("another datacenter names another primary", "datacenter", dc, "peer", WANName(node, dc), "its primary", primary, "primary", d.primary)
}

// Now lists the disputes that last, by datacenter.
func (d *Disputes) Now() []Dispute {
	d.mu.Lock()
	defer d.mu.Unlock()
	var out []Dispute
	for dc, x := range d.all {
		if time.Since(x.Heard) >= disputeFor {
			delete(d.all, dc)
			continue
		}
		out = append(out, x)
	}
	slices.SortFunc(out, func(a, b Dispute) int { return cmp.Compare(a.DC, b.DC) })
	return out
}
