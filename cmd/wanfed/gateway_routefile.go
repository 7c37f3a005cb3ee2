// SPDX-License-Identifier: MPL-2.0

package main

import (
	"fmt"
	"strings"

	"github.com/hashicorp/hcl/v2"
	"github.com/hashicorp/hcl/v2/gohcl"

	"github.com/wanfed/wanfed/gateway"
)

// routeList is the content of a route file.
type routeList struct {
	Routes []struct {
		Match     string    `hcl:"match,label"`
		To        []string  `hcl:"to"`
		Ordered   bool      `hcl:"ordered,optional"`
		Protocols []string  `hcl:"protocols,optional"`
		Proxy     bool      `hcl:"proxy_protocol,optional"`
		At        hcl.Range `hcl:",def_range"`
	} `hcl:"route,block"`
}

// readRoutes reads a file of routes. Each error names the file, the line and the
// column.
func readRoutes(path string) (*gateway.Table, error) {
	src, err := readBounded(path, maxRouteFile)
	if err != nil {
		return nil, fmt.Errorf("read settings: %w", err)
	}
	parsed, errs := parseHCLSource(path, src)
	if len(errs) > 0 {
		return nil, faults(errs...)
	}
	var list routeList
	if err := faults(hclErrors(gohcl.DecodeBody(parsed.Body, nil, &list))...); err != nil {
		return nil, err
	}
	if len(list.Routes) == 0 {
		return nil, fmt.Errorf("%s has no route: write, for example, route \"*.server.dc2.wanfed\" { to = [\"198.51.100.2:8443\"] }", path)
	}
	routes, err := list.check()
	if err != nil {
		return nil, err
	}
	return gateway.NewTable(routes)
}

// check returns the routes, or everything that is wrong with them.
func (b *routeList) check() ([]gateway.Route, error) {
	routes := make([]gateway.Route, 0, len(b.Routes))
	first := map[string]hcl.Range{}
	var errs []error
	for _, r := range b.Routes {
		route := gateway.Route{Match: r.Match, To: r.To, Ordered: r.Ordered, Protocols: r.Protocols, ProxyProtocol: r.Proxy}
		at := fmt.Sprintf("%s:%d,%d", r.At.Filename, r.At.Start.Line, r.At.Start.Column)
		for _, err := range listOf(faults(gateway.CheckRoute(route))) {
			errs = append(errs, fmt.Errorf("%s: %w", at, err))
		}
		name := strings.ToLower(strings.TrimSuffix(r.Match, "."))
		if twin, ok := first[name]; ok {
			errs = append(errs, fmt.Errorf("%s: route %q is in line %d already", at, r.Match, twin.Start.Line))
			continue
		}
		first[name] = r.At
		routes = append(routes, route)
	}
	return routes, faults(errs...)
}
