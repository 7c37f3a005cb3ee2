// SPDX-License-Identifier: MPL-2.0

package proxycfg

import (
	"slices"

	"github.com/wanfed/wanfed/gateway"
)

// UpstreamOptions apply to connections to the servers of the gateway's own
// datacenter.
type UpstreamOptions struct {
	// Protocols lists protocol ids (ALPN). A client must offer one of them.
	// Empty: a client may offer any protocol, or none.
	Protocols []string
	// ProxyTo are the addresses of servers that accept a PROXY header, version
	// 2, from this gateway. The header has the address of the client. A Client
	// sets ProxyTo from its trials.
	ProxyTo []string
}

// Tables builds the route tables of both listeners. The WAN listener leads only
// to the servers of this datacenter. Connections to gateways of other
// datacenters have no PROXY header. Tables is pure.
func Tables(s *Snapshot, options UpstreamOptions) (lan, wan *gateway.Table, err error) {
	var routes []gateway.Route
	local := func(match string, addrs ...string) {
		r := gateway.Route{Match: match, To: addrs, Protocols: options.Protocols}
		for _, addr := range addrs {
			if slices.Contains(options.ProxyTo, addr) {
				r.ProxyTo = append(r.ProxyTo, addr)
			}
		}
		routes = append(routes, r)
	}
	for _, server := range s.Servers {
		local(server.Name, server.Address)
	}
	local(s.LocalName(), s.LocalAddresses()...)
	if wan, err = gateway.NewTable(routes); err != nil {
		return nil, nil, err
	}
	for _, dc := range s.Datacenters {
		for _, match := range []string{dc.Name, "*." + dc.Name} {
			routes = append(routes, gateway.Route{Match: match, To: dc.Gateways, Ordered: true, Refuse: dc.Refuse})
		}
	}
	lan, err = gateway.NewTable(routes)
	return lan, wan, err
}
