// SPDX-License-Identifier: MPL-2.0

package status

import (
	"cmp"
	"context"
	"maps"
	"slices"
	"time"

	"github.com/wanfed/wanfed/api"
	"github.com/wanfed/wanfed/api/pb"
	"github.com/wanfed/wanfed/federation"
	"github.com/wanfed/wanfed/gossip"
	"github.com/wanfed/wanfed/resource"
)

// FederationStates implements httpapi.Cluster.
func (r *Reporter) FederationStates(ctx context.Context) ([]*pb.FederationState, uint64, error) {
	return federation.ListStates(ctx, r.cfg.Store)
}

// WaitFederationStates implements httpapi.Cluster.
func (r *Reporter) WaitFederationStates(ctx context.Context, after uint64) error {
	return r.cfg.Store.Wait(ctx, resource.Query{Type: federation.StateType}, after)
}

// Members implements httpapi.Cluster.
func (r *Reporter) Members(wan bool) []api.Member {
	pool := r.cfg.LAN
	if wan {
		pool = r.cfg.WAN
	}
	out := []api.Member{}
	for _, m := range pool.Members() {
		out = append(out, api.Member{
			Name: m.Name, Addr: m.Host, Port: m.Port, Tags: m.Tags, Status: api.MemberStatus(m.Status),
			ProtocolMin: m.ProtocolMin, ProtocolMax: m.ProtocolMax, ProtocolCur: m.ProtocolCur,
			DelegateMin: m.DelegateMin, DelegateMax: m.DelegateMax, DelegateCur: m.DelegateCur,
		})
	}
	return out
}

// Peers implements httpapi.Cluster.
func (r *Reporter) Peers() []string {
	nodes, err := r.cfg.Store.Peers()
	if err != nil {
		return []string{}
	}
	out := make([]string, 0, len(nodes))
	for _, n := range nodes {
		out = append(out, r.serverAddr(n))
	}
	return out
}

// Datacenters implements httpapi.Cluster. It returns this datacenter first, and
// then the datacenters of the address book and of the WAN pool, ordered by
// round-trip time.
func (r *Reporter) Datacenters() []string {
	const unknown = time.Hour
	rtt := map[string]time.Duration{}
	for dc := range r.cfg.Book.Load().Paths {
		rtt[dc] = unknown
	}
	for _, m := range r.cfg.WAN.Members() {
		_, dc, err := federation.SplitWANName(m.Name)
		if err != nil || m.Status == gossip.StatusLeft {
			continue
		}
		d, ok := r.cfg.WAN.RTT(m.Name)
		if !ok {
			d = unknown
		}
		if old, known := rtt[dc]; !known || d < old {
			rtt[dc] = d
		}
	}
	rtt[r.cfg.DC] = -1 // first
	return slices.SortedFunc(maps.Keys(rtt), func(a, b string) int {
		return cmp.Or(cmp.Compare(rtt[a], rtt[b]), cmp.Compare(a, b))
	})
}

// Leader implements httpapi.Cluster.
func (r *Reporter) Leader() (addr string, lastContact time.Duration, ok bool) {
	node, ok := r.cfg.Store.Leader()
	if !ok {
		return "", 0, false
	}
	return r.serverAddr(node), max(0, r.cfg.Store.LastContact()), true
}

// serverAddr returns the address of a node of this datacenter, or its name
// while the LAN pool does not know the node.
func (r *Reporter) serverAddr(node string) string {
	for _, m := range r.cfg.LAN.Members() {
		if m.Name == node {
			return m.Addr
		}
	}
	return node
}
