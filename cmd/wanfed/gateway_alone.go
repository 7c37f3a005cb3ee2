// SPDX-License-Identifier: MPL-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strings"

	"github.com/hashicorp/hcl/v2"
	"github.com/hashicorp/hcl/v2/gohcl"

	"github.com/wanfed/wanfed/gateway"
)

// checkAlone returns what is wrong with the settings of a gateway on a route file.
func (s gatewaySettings) checkAlone() error {
	var errs []error
	if len(s.Listen) == 0 {
		errs = append(errs, errors.New("routes is given but listen is not: say where to listen, for example --listen 0.0.0.0:8443"))
	}
	if s.Routes == "" {
		errs = append(errs, errors.New("listen is given but routes is not: name the file of routes, for example --routes routes.hcl"))
	}
	for _, addr := range s.Listen {
		if !isIPPort(addr) {
			errs = append(errs, fmt.Errorf("listen %q is not ip:port", addr))
		}
	}
	var foreign []string
	for _, f := range []struct {
		name string
		set  bool
	}{
		{"dc", s.DC != ""}, {"node", s.Node != ""}, {"data_dir", s.DataDir != ""},
		{"ca_file", s.CAFile != ""}, {"cert_file", s.CertFile != ""}, {"key_file", s.KeyFile != ""},
		{"servers", len(s.Servers) > 0}, {"lan", s.LAN != ""}, {"wan", s.WAN != ""}, {"wan_bind", s.WANBind != ""},
	} {
		if f.set {
			foreign = append(foreign, f.name)
		}
	}
	if len(foreign) > 0 {
		errs = append(errs, fmt.Errorf("a gateway on a route file knows no datacenter: leave out %s, or leave out listen and routes", strings.Join(foreign, ", ")))
	}
	return faults(errs...)
}

// runAlone is a gateway on a route file.
func (s gatewaySettings) runAlone(ctx context.Context, out io.Writer, p *gatewayProcess) error {
	table, err := readRoutes(s.Routes)
	if err != nil {
		return err
	}
	side := p.addSide(sideListen)
	side.SetTable(table)
	var addrs []string
	for _, addr := range s.Listen {
		ln, err := p.listen(side, "listen", addr)
		if err != nil {
			return err
		}
		addrs = append(addrs, withPort(addr, ln))
	}
	if p.adminLn, err = p.listeners.listenAdmin(s.AdminAddr, p.log); err != nil {
		return err
	}
	if err := p.open(); err != nil {
		return err
	}
	fmt.Fprintf(out, "wanfed gateway: listening on %s, %d routes\n", strings.Join(addrs, ", "), table.Len())
	return p.run(ctx)
}

// routeFile is the file's form.
type routeFile struct {
	Routes []struct {
		Match     string    `hcl:"match,label"`
		To        []string  `hcl:"to"`
		Ordered   bool      `hcl:"ordered,optional"`
		Protocols []string  `hcl:"protocols,optional"`
		Proxy     bool      `hcl:"proxy_protocol,optional"`
		At        hcl.Range `hcl:",def_range"`
	} `hcl:"route,block"`
}

// readRoutes reads a file of routes. Each fault names file, line and column.
func readRoutes(path string) (*gateway.Table, error) {
	f, errs := parseHCL(path)
	if len(errs) > 0 {
		return nil, faults(errs...)
	}
	var file routeFile
	if err := faults(hclErrors(gohcl.DecodeBody(f.Body, nil, &file))...); err != nil {
		return nil, err
	}
	if len(file.Routes) == 0 {
		return nil, fmt.Errorf("%s has no route: write, for example, route \"*.server.dc2.wanfed\" { to = [\"198.51.100.2:8443\"] }", path)
	}
	routes := make([]gateway.Route, 0, len(file.Routes))
	first := map[string]hcl.Range{}
	for _, r := range file.Routes {
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
	if len(errs) > 0 {
		return nil, faults(errs...)
	}
	return gateway.NewTable(routes)
}
