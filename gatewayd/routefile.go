// SPDX-License-Identifier: MPL-2.0

package gatewayd

import (
	"fmt"
	"strings"

	"github.com/hashicorp/hcl/v2"

	"github.com/wanfed/wanfed/gateway"
	"github.com/wanfed/wanfed/internal/settings"
)

// MaxRouteFile bounds the size of a file of routes, in bytes. It is enough for
// about 100,000 routes. The HCL parser needs up to 500 times as much memory.
const MaxRouteFile = 16 << 20

// ReadRoutes reads the file of routes at path. Each error names file, line and
// column.
func ReadRoutes(path string) (*gateway.Table, error) {
	src, err := settings.ReadFile(path, MaxRouteFile)
	if err != nil {
		return nil, fmt.Errorf("read routes: %w", err)
	}
	f, err := settings.Parse(path, src)
	if err != nil {
		return nil, err
	}
	var list struct {
		Routes []struct {
			Match         string    `hcl:"match,label"`
			To            []string  `hcl:"to"`
			Ordered       bool      `hcl:"ordered,optional"`
			Protocols     []string  `hcl:"protocols,optional"`
			ProxyProtocol bool      `hcl:"proxy_protocol,optional"`
			Pos           hcl.Range `hcl:",def_range"`
		} `hcl:"route,block"`
	}
	if err := settings.Decode(f.Body, &list); err != nil {
		return nil, err
	}
	if len(list.Routes) == 0 {
		return nil, fmt.Errorf("%s has no route; write, for example, "+
			"route \"*.server.dc2.wanfed\" { to = [\"198.51.100.2:8443\"] }", path)
	}
	var routes []gateway.Route
	var errs errorList
	lines := map[string]int{} // of the first route for each name
	for _, r := range list.Routes {
		route := gateway.Route{
			Match: r.Match, To: r.To, Ordered: r.Ordered, Protocols: r.Protocols, ProxyProtocol: r.ProxyProtocol,
		}
		routes = append(routes, route)
		pos := fmt.Sprintf("%s:%d,%d", r.Pos.Filename, r.Pos.Start.Line, r.Pos.Start.Column)
		for _, err := range settings.Split(settings.Join(gateway.CheckRoute(route))) {
			errs.addf("%s: %w", pos, err)
		}
		name := strings.ToLower(strings.TrimSuffix(r.Match, "."))
		if line, ok := lines[name]; ok {
			errs.addf("%s: duplicate route %q; the first is in line %d", pos, r.Match, line)
		} else {
			lines[name] = r.Pos.Start.Line
		}
	}
	if len(errs) > 0 {
		return nil, settings.Join(errs...)
	}
	return gateway.NewTable(routes)
}
