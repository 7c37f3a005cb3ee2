// SPDX-License-Identifier: MPL-2.0

package status

import (
	"context"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/wanfed/wanfed/api"
	"github.com/wanfed/wanfed/federation"
	"github.com/wanfed/wanfed/gossip"
	"github.com/wanfed/wanfed/internal/backoff"
	"github.com/wanfed/wanfed/replication"
	"github.com/wanfed/wanfed/resource"
	"github.com/wanfed/wanfed/resource/raftstore"
)

// PrimarySettings is the setting primary_datacenter of the servers of this
// datacenter.
type PrimarySettings struct {
	Node, Configured string // of this server
	LAN              *gossip.Pool
	Store            *raftstore.Store
}

// Changed implements replication.Servers.
func (s *PrimarySettings) Changed() <-chan struct{} { return s.LAN.Changed() }

// ConfiguredPrimaries implements replication.Servers. It returns the setting of
// each living server, by node, and the voters that are not in the LAN pool.
// Servers of an older version do not publish their setting.
func (s *PrimarySettings) ConfiguredPrimaries() (byNode map[string]string, unknown []string) {
	byNode = map[string]string{s.Node: s.Configured}
	members := s.LAN.Members()
	for _, m := range members {
		if primary := m.Tags[federation.TagPrimary]; m.Alive() && m.Name != s.Node && primary != "" {
			byNode[m.Name] = primary
		}
	}
	voters, _ := s.Store.Peers() // on an error this server leads no group
	for _, node := range voters {
		if node != s.Node && !slices.ContainsFunc(members, func(m gossip.Member) bool { return m.Name == node }) {
			unknown = append(unknown, node)
		}
	}
	return byNode, unknown
}

// differ returns a text with the servers by setting, if the settings differ. It
// also returns the number of servers whose setting differs from the setting of
// this server.
func (s *PrimarySettings) differ() (text string, others int) {
	byNode, _ := s.ConfiguredPrimaries()
	nodes := map[string][]string{} // by setting
	for node, primary := range byNode {
		nodes[primary] = append(nodes[primary], node)
		if primary != s.Configured {
			others++
		}
	}
	if len(nodes) == 1 {
		return "", 0
	}
	var list []string
	for _, primary := range slices.Sorted(maps.Keys(nodes)) {
		slices.Sort(nodes[primary])
		list = append(list, fmt.Sprintf("%s by %s", primary, strings.Join(nodes[primary], ", ")))
	}
	return strings.Join(list, "; "), others
}

// PrimaryView is this server's view of which datacenter is the primary.
type PrimaryView struct {
	dc        string
	settings  *PrimarySettings
	manager   *replication.PrimaryManager
	conflicts *federation.PrimaryConflicts
	logger    *slog.Logger

	mu     sync.Mutex
	others []string // other datacenters that are also a primary; only the leader has them
}

func (v *PrimaryView) otherPrimaries() []string {
	v.mu.Lock()
	defer v.mu.Unlock()
	return v.others
}

// NewPrimaryView returns a PrimaryView of a server of dc.
func NewPrimaryView(
	dc string, s *PrimarySettings, m *replication.PrimaryManager, c *federation.PrimaryConflicts, logger *slog.Logger,
) *PrimaryView {
	return &PrimaryView{dc: dc, settings: s, manager: m, conflicts: c, logger: logger}
}

// checkPrimariesEvery is the interval at which the leader checks whether
// datacenters that claim to be the primary are the primary.
const checkPrimariesEvery = 3 * time.Second

// WatchOthers looks for a second primary until ctx ends, and logs a new one
// once. Only the leader runs it.
func (v *PrimaryView) WatchOthers(ctx context.Context) error {
	defer v.setOthers(nil) // the next leader makes its own check
	for ctx.Err() == nil {
		var now []string
		for _, c := range v.conflicts.List() {
			if c.ClaimsItself() && c.DC != v.manager.PrimaryDC() && v.manager.ProbePrimary(ctx, c.DC) {
				now = append(now, c.DC)
			}
		}
		was := v.setOthers(now)
		for _, dc := range now {
			if !slices.Contains(was, dc) {
				v.logger.Error("two primaries: writes of the one that is given up will be lost; set the same primary_datacenter on all servers",
					"dc", dc, "primary", v.manager.PrimaryDC())
			}
		}
		backoff.Sleep(ctx, checkPrimariesEvery, nil)
	}
	return nil
}

func (v *PrimaryView) setOthers(now []string) (was []string) {
	v.mu.Lock()
	defer v.mu.Unlock()
	was, v.others = v.others, now
	return was
}

// conflict returns the remedy if datacenter dc names another primary, and ""
// otherwise.
func (v *PrimaryView) conflict(dc string) string {
	for _, c := range v.conflicts.List() {
		switch {
		case c.DC != dc:
		case slices.Contains(v.otherPrimaries(), dc):
			return fmt.Sprintf("%s is a primary too, besides %s: writes of the one that is given up will be lost; "+
				"set the same primary_datacenter on all servers", dc, v.manager.PrimaryDC())
		default:
			return fmt.Sprintf("servers of %s (%s) have primary_datacenter %s, those of %s have %s: set the same on all servers",
				dc, c.Node, c.Primary, v.dc, v.settings.Configured)
		}
	}
	return ""
}

// component returns the line of the status about the primary.
func (v *PrimaryView) component() api.ComponentStatus {
	primary, configured := v.manager.PrimaryDC(), v.settings.Configured
	out := api.ComponentStatus{Name: "primary", State: "ok", Detail: primary}
	if primary == v.dc {
		out.Detail += ", this datacenter"
	}
	conflicts, others := v.conflicts.List(), v.otherPrimaries()
	switch differ, _ := v.settings.differ(); {
	case len(others) > 0 && v.conflict(others[0]) != "":
		out.State, out.Detail = "two primaries", v.conflict(others[0])
	case differ != "":
		out.State = "servers differ"
		out.Detail = fmt.Sprintf("%s until all servers here have the same primary_datacenter: %s", out.Detail, differ)
	case v.manager.PendingReason() != "":
		out.State, out.Detail = "changing", resource.ErrorText(v.manager.PendingReason())
	case primary != configured:
		out.State, out.Detail = "changing", fmt.Sprintf("still %s, not yet %s; the status of the leader has the reason", primary, configured)
	case len(conflicts) > 0:
		out.State, out.Detail = "disputed", v.conflict(conflicts[0].DC)
	}
	return out
}
