// SPDX-License-Identifier: MPL-2.0

package proxycfg

import (
	"fmt"
	"slices"

	"github.com/wanfed/wanfed/api/pb"
	"github.com/wanfed/wanfed/gateway"
	"github.com/wanfed/wanfed/tlsutil"
)

// UpstreamOptions is what a gateway keeps to with the servers of its own datacenter.
type UpstreamOptions struct {
	// Protocols are ids (ALPN) of which their clients must offer one. Empty: they may offer what they like.
	Protocols []string
	// ProxyProtocol says that the servers want a PROXY header of version 2 before all that comes from this gateway. They are told
	// who its clients are; its own connections say that they are its own.
	ProxyProtocol bool
}

// Tables builds what the two sides of a gateway route by. It is pure. What cannot be routed by, such as an address without a
// port, is left out and named in faults: a wrong record of one datacenter must not cost the way to the others. Gateways of other
// datacenters are never sent a PROXY header.
func Tables(snap *pb.GatewaySnapshot, to UpstreamOptions) (lan, wan *gateway.Table, faults []error) {
	b := builder{dc: snap.GetDatacenter(), domain: snap.GetDomain(), to: to, seen: map[string]bool{}}
	b.servers(snap.GetServers())
	wan = b.table()
	for _, dc := range snap.GetDatacenters() {
		b.datacenter(dc)
	}
	return b.table(), wan, b.faults
}

// builder collects routes that are fit for a table.
type builder struct {
	dc, domain string
	to         UpstreamOptions
	routes     []gateway.Route
	seen       map[string]bool // names of routes
	faults     []error
}

// table builds a table of the routes so far. Those that add let in have no fault.
func (b *builder) table() *gateway.Table {
	t, err := gateway.NewTable(b.routes)
	if err != nil {
		b.faults = append(b.faults, err)
		return &gateway.Table{}
	}
	return t
}

// add lets a route in if it is fit and new.
func (b *builder) add(r gateway.Route) bool {
	switch err := gateway.CheckRoute(r); {
	case err != nil:
		b.faults = append(b.faults, err)
	case b.seen[r.Match]:
		b.faults = append(b.faults, fmt.Errorf("%q is there twice", r.Match))
	default:
		b.seen[r.Match] = true
		b.routes = append(b.routes, r)
		return true
	}
	return false
}

// servers adds the routes to this datacenter's servers: each by its name, and any of them.
func (b *builder) servers(servers []*pb.SnapshotServer) {
	var all []string
	for _, s := range servers {
		err := tlsutil.CheckLabel(s.GetNode())
		if err == nil {
			err = gateway.CheckAddr(s.GetAddress())
		}
		if err != nil {
			b.faults = append(b.faults, fmt.Errorf("server %q: %w", s.GetNode(), err))
			continue
		}
		ok := b.toServers(tlsutil.ServerName(s.Node, b.dc, b.domain), s.Address)
		if ok && !slices.Contains(all, s.Address) {
			all = append(all, s.Address)
		}
	}
	if len(all) > 0 {
		b.toServers(tlsutil.ServerName("", b.dc, b.domain), all...)
	}
}

func (b *builder) toServers(match string, addrs ...string) bool {
	return b.add(gateway.Route{Match: match, To: addrs, Protocols: b.to.Protocols, ProxyProtocol: b.to.ProxyProtocol})
}

// datacenter adds the routes to another datacenter's gateways, the best first.
func (b *builder) datacenter(dc *pb.SnapshotDatacenter) {
	if err := tlsutil.CheckLabel(dc.GetName()); err != nil {
		b.faults = append(b.faults, fmt.Errorf("datacenter %q: %w", dc.GetName(), err))
		return
	}
	if dc.Name == b.dc {
		return // its servers are near
	}
	var to []string
	for _, addr := range dc.Gateways {
		if err := gateway.CheckAddr(addr); err != nil {
			b.faults = append(b.faults, fmt.Errorf("gateway of datacenter %s: %w", dc.Name, err))
		} else if !slices.Contains(to, addr) {
			to = append(to, addr)
		}
	}
	if len(to) == 0 {
		return
	}
	name := tlsutil.ServerName("", dc.Name, b.domain)
	b.add(gateway.Route{Match: name, To: to, Ordered: true})
	b.add(gateway.Route{Match: "*." + name, To: to, Ordered: true})
}
