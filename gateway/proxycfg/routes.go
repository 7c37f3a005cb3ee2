// SPDX-License-Identifier: MPL-2.0

package proxycfg

import (
	"fmt"
	"slices"

	"github.com/wanfed/wanfed/api/pb"
	"github.com/wanfed/wanfed/gateway"
	"github.com/wanfed/wanfed/internal/netaddr"
	"github.com/wanfed/wanfed/tlsutil"
)

// UpstreamOptions apply to connections to the servers of the gateway's own
// datacenter.
type UpstreamOptions struct {
	// Protocols lists protocol ids (ALPN). A client must offer one of them.
	// Empty: a client may offer any protocol, or none.
	Protocols []string
	// ProxyProtocol means that the servers expect a PROXY header, version 2, on
	// every connection from this gateway. The header has the address of the
	// client, or no address on connections of the gateway itself.
	ProxyProtocol bool
}

// Tables builds the route tables of both listeners. It omits invalid parts of
// the snapshot, such as an address without a port, and returns them in faults.
// A fault in one datacenter does not affect the routes to others. Connections
// to gateways of other datacenters have no PROXY header. Tables is pure.
func Tables(snap *pb.GatewaySnapshot, options UpstreamOptions) (lan, wan *gateway.Table, faults []error) {
	b := builder{dc: snap.GetDatacenter(), domain: snap.GetDomain(), options: options, names: map[string]bool{}}
	b.addServers(snap.GetServers())
	wan = b.table()
	for _, dc := range snap.GetDatacenters() {
		b.addDatacenter(dc)
	}
	return b.table(), wan, b.faults
}

// builder collects valid routes.
type builder struct {
	dc, domain string
	options    UpstreamOptions
	routes     []gateway.Route
	names      map[string]bool // the field Match of each route
	faults     []error
}

// table builds a table of the routes so far.
func (b *builder) table() *gateway.Table {
	t, err := gateway.NewTable(b.routes)
	if err != nil {
		b.faults = append(b.faults, err)
		return &gateway.Table{}
	}
	return t
}

// add adds a route if it is valid and new.
func (b *builder) add(r gateway.Route) bool {
	switch err := gateway.CheckRoute(r); {
	case err != nil:
		b.faults = append(b.faults, err)
	case b.names[r.Match]:
		b.faults = append(b.faults, fmt.Errorf("duplicate match %q", r.Match))
	default:
		b.names[r.Match] = true
		b.routes = append(b.routes, r)
		return true
	}
	return false
}

// addServers adds the routes to this datacenter's servers: one route to each
// server by its name, and one route to any server.
func (b *builder) addServers(servers []*pb.SnapshotServer) {
	var all []string
	for _, s := range servers {
		err := tlsutil.CheckLabel(s.GetNode())
		if err == nil {
			err = netaddr.CheckHostPort(s.GetAddress())
		}
		if err != nil {
			b.faults = append(b.faults, fmt.Errorf("server %q: %w", s.GetNode(), err))
			continue
		}
		ok := b.addServer(tlsutil.ServerName(s.Node, b.dc, b.domain), s.Address)
		if ok && !slices.Contains(all, s.Address) {
			all = append(all, s.Address)
		}
	}
	if len(all) > 0 {
		b.addServer(tlsutil.ServerName("", b.dc, b.domain), all...)
	}
}

func (b *builder) addServer(match string, addrs ...string) bool {
	return b.add(gateway.Route{
		Match: match, To: addrs, Protocols: b.options.Protocols, ProxyProtocol: b.options.ProxyProtocol,
	})
}

// addDatacenter adds the routes to another datacenter's gateways, the best
// gateway first.
func (b *builder) addDatacenter(dc *pb.SnapshotDatacenter) {
	if err := tlsutil.CheckLabel(dc.GetName()); err != nil {
		b.faults = append(b.faults, fmt.Errorf("datacenter %q: %w", dc.GetName(), err))
		return
	}
	if dc.Name == b.dc {
		return // addServers has added its servers
	}
	var to []string
	for _, addr := range dc.Gateways {
		if err := netaddr.CheckHostPort(addr); err != nil {
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
