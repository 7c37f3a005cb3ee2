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

// Tags of members of the WAN pool.
const (
	TagRole    = "role"
	TagDC      = "dc"
	TagNodeID  = "id"
	TagPrimary = "primary"
	TagPort    = "port"
	TagBuild   = "build"
	// TagGroup is the id of the Raft group of the member's datacenter.
	TagGroup = "group"
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

// Admit returns a check for members of the WAN pool, for a server of dc that is
// configured with primary. A member that names another primary is rejected. If
// onConflict is not nil, Admit's check calls it for such a member.
func Admit(
	dc, primary string, groupOf func(dc string) string, onConflict func(node, dc, primary string),
) func(gossip.Member) error {
	return func(m gossip.Member) error {
		node, memberDC, err := SplitWANName(m.Name)
		if err != nil {
			return err
		}
		if tag := m.Tags[TagDC]; tag != memberDC {
			return fmt.Errorf("WAN member %s reports the datacenter %q", m.Name, tag)
		}
		if named := m.Tags[TagPrimary]; named != primary {
			if onConflict != nil {
				onConflict(node, memberDC, named)
			}
			return fmt.Errorf("%s reports the primary datacenter %q, %s reports %q: set the same primary_datacenter everywhere",
				m.Name, named, dc, primary)
		}
		want, got := groupOf(memberDC), m.Tags[TagGroup]
		if want != "" && got != "" && got != want {
			return fmt.Errorf("%s is in the group %s, but the accepted group of %s is %s: two datacenters have this name", m.Name, got, memberDC, want)
		}
		return nil
	}
}

// PrimaryConflict describes a server of another datacenter that names another
// primary than this server.
type PrimaryConflict struct {
	DC, Node string
	// Primary is the datacenter that the server names.
	Primary  string
	LastSeen time.Time
}

// ClaimsItself reports whether the server names its own datacenter. That
// datacenter is a primary or is to become one.
func (c PrimaryConflict) ClaimsItself() bool { return c.Primary == c.DC }

const (
	// conflictTimeout is the time from the last observation of a conflict to
	// its removal. A rejected member retries every few seconds.
	conflictTimeout = 30 * time.Second
	// maxConflicts limits the number of stored conflicts, which peers cause.
	maxConflicts = 256
	// conflictLogInterval is the minimum time between two log lines about a
	// datacenter that keeps changing the primary that it names.
	conflictLogInterval = 10 * time.Second
)

// PrimaryConflicts records the datacenters that name another primary. Use
// NewPrimaryConflicts to create one. Its methods may be called from any
// goroutine.
type PrimaryConflicts struct {
	dc, primary string
	log         *slog.Logger

	mu  sync.Mutex
	all map[string]loggedConflict // by datacenter, the last one seen
}

// loggedConflict is a conflict with the primary and time of its last log line.
type loggedConflict struct {
	PrimaryConflict
	loggedPrimary string
	loggedAt      time.Time
}

// NewPrimaryConflicts returns the conflicts of a server of dc that is configured
// with primary.
func NewPrimaryConflicts(dc, primary string, log *slog.Logger) *PrimaryConflicts {
	return &PrimaryConflicts{dc: dc, primary: primary, log: log, all: map[string]loggedConflict{}}
}

// Record records that a server names another primary, and logs a new conflict.
// It ignores servers of the local datacenter, which are compared in the LAN pool.
// It has the type of Admit's last argument.
func (p *PrimaryConflicts) Record(node, dc, primary string) {
	if dc == p.dc || tlsutil.CheckLabel(primary) != nil {
		return
	}
	if p.add(PrimaryConflict{DC: dc, Node: node, Primary: primary, LastSeen: time.Now()}) {
		p.log.Warn("another datacenter names another primary",
			"peer", WANName(node, dc), "named_primary", primary, "primary", p.primary)
	}
}

// add stores c if there is space, and reports whether to log it.
func (p *PrimaryConflicts) add(c PrimaryConflict) (log bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	old, known := p.all[c.DC]
	if !known && len(p.all) >= maxConflicts {
		p.sweepLocked()
	}
	if !known && len(p.all) >= maxConflicts {
		return false
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

func (p *PrimaryConflicts) sweepLocked() {
	maps.DeleteFunc(p.all, func(_ string, c loggedConflict) bool { return time.Since(c.LastSeen) >= conflictTimeout })
}

// List returns the current conflicts, ordered by datacenter.
func (p *PrimaryConflicts) List() []PrimaryConflict {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.sweepLocked()
	var out []PrimaryConflict
	for _, c := range p.all {
		out = append(out, c.PrimaryConflict)
	}
	slices.SortFunc(out, func(a, b PrimaryConflict) int { return cmp.Compare(a.DC, b.DC) })
	return out
}
