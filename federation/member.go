// SPDX-License-Identifier: MPL-2.0

package federation

import (
	"cmp"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/wanfed/wanfed/gossip"
	"github.com/wanfed/wanfed/tlsutil"
)

// Names of tags in the WAN pool. See also TagGateways.
const (
	TagRole    = "role"
	TagDC      = "dc"
	TagNodeID  = "id"
	TagPrimary = "primary" // the configured primary datacenter
	TagPort    = "port"
	TagBuild   = "build"
	// TagGroup is the id of the Raft group of the member's datacenter.
	TagGroup = "group"
	// TagEpoch is the number of the highest epoch of the primary that the member
	// knows. It is a hint: a server calls the member's datacenter before it
	// relies on it.
	TagEpoch = "epoch"
)

// RoleValue is the value of TagRole for a server. Consul's servers require it.
const RoleValue = "consul"

// WANName returns the name of a node in the WAN pool.
func WANName(node, dc string) string { return node + "." + dc }

// DatacenterOf returns the datacenter in the name of a member of the WAN pool.
func DatacenterOf(member string) string {
	_, dc, _ := strings.Cut(member, ".")
	return dc
}

// SplitWANName splits <node>.<dc> and checks both parts.
func SplitWANName(name string) (node, dc string, err error) {
	node, dc, ok := strings.Cut(name, ".")
	if !ok {
		return "", "", fmt.Errorf("WAN member name %q is not <node>.<dc>", name)
	}
	if err := tlsutil.CheckLabel(node); err != nil {
		return "", "", fmt.Errorf("WAN member name %q: node: %w", name, err)
	}
	if err := tlsutil.CheckLabel(dc); err != nil {
		return "", "", fmt.Errorf("WAN member name %q: datacenter: %w", name, err)
	}
	return node, dc, nil
}

// Admit returns the function gossip.Config.Admit of the WAN pool, for a server
// of dc that is configured with primary. The function rejects members that are
// configured with another primary, and calls onConflict for them unless
// onConflict is nil. The function also rejects members whose Raft group is not
// the result of groupOf for their datacenter. The result "" permits any group.
// Members of dc are not checked: other datacenters may still list the servers of
// an earlier group of dc, which this group replaces.
func Admit(
	dc, primary string, groupOf func(dc string) string, onConflict func(node, dc, primary, epoch string),
) func(gossip.Member) error {
	return func(m gossip.Member) error {
		node, memberDC, err := SplitWANName(m.Name)
		if err != nil {
			return err
		}
		if tag := m.Tags[TagDC]; tag != memberDC {
			return fmt.Errorf("WAN member %s reports the datacenter %q", m.Name, tag)
		}
		if other := m.Tags[TagPrimary]; other != primary {
			if onConflict != nil {
				onConflict(node, memberDC, other, m.Tags[TagEpoch])
			}
			return fmt.Errorf("%s reports the primary datacenter %q, %s reports %q: "+
				"set the same primary_datacenter everywhere", m.Name, other, dc, primary)
		}
		want, got := groupOf(memberDC), m.Tags[TagGroup]
		if memberDC != dc && want != "" && got != "" && got != want {
			return fmt.Errorf("%s is in the group %s, but the accepted group of %s is %s: two datacenters have "+
				"this name",
				m.Name, got, memberDC, want)
		}
		return nil
	}
}

// PrimaryConflict describes a server of another datacenter that is configured
// with another primary than this server.
type PrimaryConflict struct {
	DC, Node string
	Primary  string // the configured primary of that server
	Epoch    string // the last value of TagEpoch of that server
	LastSeen time.Time
}

// ClaimsItself reports whether the configured primary of the server is its own
// datacenter.
func (c PrimaryConflict) ClaimsItself() bool { return c.Primary == c.DC }

const (
	// conflictTimeout is the time from the last observation of a conflict to
	// its removal. A rejected member retries every few seconds.
	conflictTimeout = 30 * time.Second
	// maxConflicts limits the number of conflicts that peers can cause.
	maxConflicts = 256
	// conflictLogInterval is the minimum time between two log lines about a
	// datacenter whose configured primary changes repeatedly.
	conflictLogInterval = 10 * time.Second
)

// PrimaryConflicts records the datacenters that are configured with another
// primary. NewPrimaryConflicts creates it. Its methods may be called from any
// goroutine.
type PrimaryConflicts struct {
	dc, primary string
	log         *slog.Logger

	mu  sync.Mutex
	all map[string]loggedConflict // last conflict of each datacenter
}

// loggedConflict is a conflict with the primary and time in its last log line.
type loggedConflict struct {
	PrimaryConflict
	loggedPrimary string
	loggedAt      time.Time
}

// NewPrimaryConflicts returns an empty PrimaryConflicts for a server of dc that
// is configured with primary.
func NewPrimaryConflicts(dc, primary string, log *slog.Logger) *PrimaryConflicts {
	return &PrimaryConflicts{dc: dc, primary: primary, log: log, all: map[string]loggedConflict{}}
}

// Record records the configured primary and TagEpoch of a server that Admit
// rejects, and logs a new conflict. It ignores servers of the local datacenter.
func (p *PrimaryConflicts) Record(node, dc, primary, epoch string) {
	if dc == p.dc || tlsutil.CheckLabel(primary) != nil {
		return
	}
	if p.add(PrimaryConflict{DC: dc, Node: node, Primary: primary, Epoch: epoch, LastSeen: time.Now()}) {
		p.log.Warn("another datacenter names another primary",
			"peer", WANName(node, dc), "named_primary", primary, "primary", p.primary)
	}
}

// add stores c unless the limit is reached. It reports whether to log c.
func (p *PrimaryConflicts) add(c PrimaryConflict) (log bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	old, known := p.all[c.DC]
	if !known && len(p.all) >= maxConflicts {
		if p.removeExpired(); len(p.all) >= maxConflicts {
			return false
		}
	}
	logged := loggedConflict{c, old.loggedPrimary, old.loggedAt}
	log = !known || c.LastSeen.Sub(old.LastSeen) >= conflictTimeout ||
		c.Primary != old.loggedPrimary && c.LastSeen.Sub(old.loggedAt) >= conflictLogInterval
	if log {
		logged.loggedPrimary, logged.loggedAt = c.Primary, c.LastSeen
	}
	p.all[c.DC] = logged
	return log
}

// removeExpired removes old conflicts. The caller holds p.mu.
func (p *PrimaryConflicts) removeExpired() {
	maps.DeleteFunc(p.all, func(_ string, c loggedConflict) bool { return time.Since(c.LastSeen) >= conflictTimeout })
}

// List returns the current conflicts, ordered by datacenter.
func (p *PrimaryConflicts) List() []PrimaryConflict {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.removeExpired()
	var out []PrimaryConflict
	for _, c := range p.all {
		out = append(out, c.PrimaryConflict)
	}
	slices.SortFunc(out, func(a, b PrimaryConflict) int { return cmp.Compare(a.DC, b.DC) })
	return out
}
