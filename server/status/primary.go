// SPDX-License-Identifier: MPL-2.0

package status

import (
	"context"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/wanfed/wanfed/api"
	"github.com/wanfed/wanfed/federation"
	"github.com/wanfed/wanfed/gossip"
	"github.com/wanfed/wanfed/internal/backoff"
	"github.com/wanfed/wanfed/internal/rpctext"
	"github.com/wanfed/wanfed/replication"
	"github.com/wanfed/wanfed/resource/raftstore"
)

// PrimarySettings reads the setting primary_datacenter of the servers of this
// datacenter.
type PrimarySettings struct {
	Node       string // this server
	Configured string // primary_datacenter of this server
	LAN        *gossip.Pool
	Store      *raftstore.Store
}

// Changed implements replication.Servers.
func (s *PrimarySettings) Changed() <-chan struct{} { return s.LAN.Changed() }

// ConfiguredPrimaries implements replication.Servers. It returns the setting of
// each alive server, by node, and the voters that are not in the LAN pool.
// Servers of an older version do not publish their setting.
func (s *PrimarySettings) ConfiguredPrimaries() (byNode map[string]string, unknown []string) {
	byNode = map[string]string{s.Node: s.Configured}
	members := s.LAN.Members()
	for _, m := range members {
		if primary := m.Tags[federation.TagPrimary]; m.Alive() && m.Name != s.Node && primary != "" {
			byNode[m.Name] = primary
		}
	}
	voters, _ := s.Store.Peers() // on an error this server is not the leader
	for _, node := range voters {
		if node != s.Node && !slices.ContainsFunc(members, func(m gossip.Member) bool { return m.Name == node }) {
			unknown = append(unknown, node)
		}
	}
	return byNode, unknown
}

// differences returns a text with the servers by setting, or "" if all servers
// have the same setting. It also returns the number of servers whose setting
// differs from the setting of this server.
func (s *PrimarySettings) differences() (text string, different int) {
	byNode, _ := s.ConfiguredPrimaries()
	nodes := map[string][]string{} // by setting
	for _, node := range slices.Sorted(maps.Keys(byNode)) {
		nodes[byNode[node]] = append(nodes[byNode[node]], node)
	}
	if len(nodes) == 1 {
		return "", 0
	}
	var list []string
	for _, primary := range slices.Sorted(maps.Keys(nodes)) {
		list = append(list, fmt.Sprintf("%s by %s", primary, strings.Join(nodes[primary], ", ")))
	}
	return strings.Join(list, "; "), len(byNode) - len(nodes[s.Configured])
}

// PrimaryView reports the primary, and other datacenters that may be a primary
// as well.
type PrimaryView struct {
	dc        string
	settings  *PrimarySettings
	manager   *replication.PrimaryManager
	conflicts *federation.PrimaryConflicts
	logger    *slog.Logger

	mu     sync.Mutex
	others []string // other datacenters that are a primary; empty at followers
}

// NewPrimaryView returns a PrimaryView of a server of dc.
func NewPrimaryView(
	dc string, s *PrimarySettings, m *replication.PrimaryManager, c *federation.PrimaryConflicts, logger *slog.Logger,
) *PrimaryView {
	return &PrimaryView{dc: dc, settings: s, manager: m, conflicts: c, logger: logger}
}

// checkInterval is the interval at which the leader probes the datacenters that
// claim to be the primary.
const checkInterval = 3 * time.Second

// WatchOthers probes the datacenters that claim to be the primary, or whose tag
// has a newer epoch, until ctx ends. It logs each second primary once. Only the
// leader runs it.
func (v *PrimaryView) WatchOthers(ctx context.Context) error {
	defer v.setOthers(nil) // the next leader makes its own probes
	for ctx.Err() == nil {
		var others []string
		for _, c := range v.conflicts.List() {
			tag, err := strconv.ParseUint(c.Epoch, 10, 64)
			newer := err == nil && tag > v.manager.KnownEpoch().Number
			if (c.ClaimsItself() || newer) && c.DC != v.manager.PrimaryDC() && v.manager.ProbePrimary(ctx, c.DC) {
				others = append(others, c.DC)
			}
		}
		if v.superseded() != "" {
			others = nil
		}
		logged := v.setOthers(others)
		for _, dc := range others {
			if !slices.Contains(logged, dc) {
				v.logger.Error("two primaries: one of them must be demoted and loses its writes; "+
					"set the same primary_datacenter on all servers", "other_primary", dc, "primary",
					v.manager.PrimaryDC())
			}
		}
		backoff.Sleep(ctx, checkInterval, nil)
	}
	return nil
}

func (v *PrimaryView) setOthers(others []string) (previous []string) {
	v.mu.Lock()
	defer v.mu.Unlock()
	previous, v.others = v.others, others
	return previous
}

func (v *PrimaryView) otherPrimaries() []string {
	v.mu.Lock()
	defer v.mu.Unlock()
	return v.others
}

// superseded returns the remedy if a newer primary has replaced the one of this
// datacenter, and "" otherwise.
func (v *PrimaryView) superseded() string {
	by := v.manager.SupersededBy()
	switch primary := v.manager.PrimaryDC(); {
	case by == replication.Epoch{}:
		return ""
	case primary == v.dc:
		if err := v.manager.Writable(); err != nil {
			return rpctext.Plain(err.Error())
		}
		return "" // a take-over has ended
	default:
		return fmt.Sprintf("%s has replaced %s as the primary, in epoch %d: set primary_datacenter = %[1]q "+
			"on all servers of %[4]s, and restart them", by.Datacenter, primary, by.Number, v.dc)
	}
}

// conflict returns the remedy if datacenter dc names another primary, and ""
// otherwise.
func (v *PrimaryView) conflict(dc string) string {
	for _, c := range v.conflicts.List() {
		switch {
		case c.DC != dc:
		case c.ClaimsItself() && v.manager.SupersededBy().Datacenter == dc:
			return v.superseded()
		case slices.Contains(v.otherPrimaries(), dc):
			return fmt.Sprintf("%s and %s are both a primary: one of them must be demoted and loses its writes; "+
				"set the same primary_datacenter on all servers", dc, v.manager.PrimaryDC())
		default:
			return fmt.Sprintf("servers of %s (%s) have primary_datacenter %s, but servers of %s have %s: "+
				"set the same value on all servers", dc, c.Node, c.Primary, v.dc, v.settings.Configured)
		}
	}
	return ""
}

// component returns the status of the primary.
func (v *PrimaryView) component() api.ComponentStatus {
	primary, configured := v.manager.PrimaryDC(), v.settings.Configured
	out := api.ComponentStatus{Name: "primary", State: "ok", Detail: primary}
	if primary == v.dc {
		out.Detail += ", this datacenter"
	}
	if epoch := v.manager.Epoch(); epoch > 0 {
		out.Detail += fmt.Sprintf(", epoch %d", epoch)
	}
	conflicts, others := v.conflicts.List(), v.otherPrimaries()
	switch differences, _ := v.settings.differences(); {
	case v.superseded() != "" && primary == configured:
		out.State, out.Detail = "superseded", v.superseded()
	case len(others) > 0 && v.conflict(others[0]) != "":
		out.State, out.Detail = "two primaries", v.conflict(others[0])
	case differences != "":
		out.State = "servers differ"
		out.Detail = fmt.Sprintf("%s until all servers here have the same primary_datacenter: %s", out.Detail,
			differences)
	case primary == v.dc && v.settings.Store.IsLeader() && v.manager.LeaseExpired():
		out.State = "isolated"
		out.Detail += "; it refuses writes of federated resources, because no other datacenter has called its leader " +
			"within primary_lease: check its gateways"
	case v.manager.PendingReason() != "":
		out.State, out.Detail = "changing", rpctext.Plain(v.manager.PendingReason())
	case primary != configured:
		out.State = "changing"
		out.Detail = fmt.Sprintf("still %s, not yet %s; the status of the leader has the reason", primary, configured)
	case len(conflicts) > 0:
		out.State, out.Detail = "disputed", v.conflict(conflicts[0].DC)
	}
	return out
}
