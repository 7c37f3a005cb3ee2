// SPDX-License-Identifier: MPL-2.0

package server

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
	"github.com/wanfed/wanfed/server/httpapi"
)

// cluster serves the HTTP API with what this server knows of its datacenter and
// of the federation.
type cluster struct {
	*statusReporter
	remote *remote
}

var _ httpapi.Cluster = (*cluster)(nil)

// FederationStates implements httpapi.Cluster.
func (c *cluster) FederationStates(ctx context.Context) ([]*pb.FederationState, uint64, error) {
	return federation.ListStates(ctx, c.store)
}

// WaitFederationStates implements httpapi.Cluster.
func (c *cluster) WaitFederationStates(ctx context.Context, after uint64) error {
	return c.store.Wait(ctx, resource.Query{Type: federation.StateType}, after)
}

// Query implements httpapi.Cluster.
func (c *cluster) Query(ctx context.Context, dc string, req *pb.QueryRequest, limit time.Duration) (*pb.QueryResponse, error) {
	return c.remote.query(ctx, dc, req, limit)
}

// Members implements httpapi.Cluster.
func (c *cluster) Members(wan bool) []api.Member {
	pool := c.lan
	if wan {
		pool = c.wan
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
func (c *cluster) Peers() []string {
	nodes, err := c.store.Peers()
	if err != nil {
		return []string{}
	}
	out := make([]string, 0, len(nodes))
	for _, n := range nodes {
		out = append(out, c.serverAddr(n))
	}
	return out
}

// Datacenters implements httpapi.Cluster: this datacenter, and those of the
// address book and of the WAN pool by their round-trip time.
func (r *statusReporter) Datacenters() []string {
	const unknown = time.Hour
	rtt := map[string]time.Duration{}
	for dc := range r.network.book.Load().Paths {
		rtt[dc] = unknown
	}
	for _, m := range r.wan.Members() {
		_, dc, err := federation.SplitWANName(m.Name)
		if err != nil || m.Status == gossip.StatusLeft {
			continue
		}
		d, ok := r.wan.RTT(m.Name)
		if !ok {
			d = unknown
		}
		if old, known := rtt[dc]; !known || d < old {
			rtt[dc] = d
		}
	}
	rtt[r.dc] = -1 // first
	return slices.SortedFunc(maps.Keys(rtt), func(a, b string) int {
		return cmp.Or(cmp.Compare(rtt[a], rtt[b]), cmp.Compare(a, b))
	})
}

// Leader implements httpapi.Cluster.
func (r *statusReporter) Leader() (addr string, lastContact time.Duration, ok bool) {
	node, ok := r.store.Leader()
	if !ok {
		return "", 0, false
	}
	return r.serverAddr(node), max(0, r.store.LastContact()), true
}

// serverAddr returns the address of a node of this datacenter, or its name while
// the LAN pool does not know the node.
func (r *statusReporter) serverAddr(node string) string {
	for _, m := range r.lan.Members() {
		if m.Name == node {
			return m.Addr
		}
	}
	return node
}

// aliveIn reports whether any server of dc is alive.
func aliveIn(wan *gossip.Pool, dc string) bool {
	return slices.ContainsFunc(wan.Members(), func(m gossip.Member) bool {
		_, of, err := federation.SplitWANName(m.Name)
		return err == nil && of == dc && m.Alive()
	})
}
