// SPDX-License-Identifier: MPL-2.0

package proxycfg

import (
	"errors"
	"fmt"

	"github.com/wanfed/wanfed/api/pb"
	"github.com/wanfed/wanfed/gateway"
	"github.com/wanfed/wanfed/tlsutil"
)

// Tables builds what the two sides of a gateway route by. It is pure. A snapshot that cannot be routed by is an error that
// names the fault: nothing of it is used.
func Tables(snap *pb.GatewaySnapshot) (lan, wan *gateway.Table, err error) {
	local := localRoutes(snap)
	far := farRoutes(snap)
	wan, wanErr := gateway.NewTable(local)
	lan, lanErr := gateway.NewTable(append(far, local...))
	if err := errors.Join(wanErr, lanErr); err != nil {
		return nil, nil, fmt.Errorf("snapshot of %s: %w", snap.GetDatacenter(), err)
	}
	return lan, wan, nil
}

// localRoutes lead to this datacenter's servers: each by its name, and any of them.
func localRoutes(snap *pb.GatewaySnapshot) []gateway.Route {
	var routes []gateway.Route
	var all []string
	for _, s := range snap.GetServers() {
		routes = append(routes, gateway.Route{
			Match: tlsutil.ServerName(s.Node, snap.Datacenter, snap.Domain), To: []string{s.Address},
		})
		all = append(all, s.Address)
	}
	if len(all) > 0 {
		routes = append(routes, gateway.Route{Match: tlsutil.ServerName("", snap.Datacenter, snap.Domain), To: all})
	}
	return routes
}

// farRoutes lead to other datacenters' gateways, the best first.
func farRoutes(snap *pb.GatewaySnapshot) []gateway.Route {
	var routes []gateway.Route
	for _, dc := range snap.GetDatacenters() {
		if dc.Name == snap.Datacenter || len(dc.Gateways) == 0 {
			continue
		}
		name := tlsutil.ServerName("", dc.Name, snap.Domain)
		for _, match := range []string{name, "*." + name} {
			routes = append(routes, gateway.Route{Match: match, To: dc.Gateways, Ordered: true})
		}
	}
	return routes
}
