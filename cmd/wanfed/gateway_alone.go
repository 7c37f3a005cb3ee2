// SPDX-License-Identifier: MPL-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/signal"
	"strings"
	"syscall"

	"github.com/hashicorp/hcl/v2"
	"github.com/hashicorp/hcl/v2/gohcl"
	"golang.org/x/sync/errgroup"

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
func (s gatewaySettings) runAlone(ctx context.Context, out io.Writer, logger *slog.Logger) (err error) {
	table, err := readRoutes(s.Routes)
	if err != nil {
		return err
	}
	side := gateway.NewSide("listen")
	side.SetTable(table)
	var lns listeners
	defer func() { err = errors.Join(err, lns.close()) }()
	var serving []gateway.Listener
	var addrs []string
	for _, addr := range s.Listen {
		ln, err := lns.listen("listen", addr)
		if err != nil {
			return err
		}
		serving = append(serving, gateway.Listener{Listener: ln, Side: side})
		addrs = append(addrs, withPort(addr, ln))
	}
	proxy, err := gateway.New(gateway.Config{Logger: logger})
	if err != nil {
		return err
	}
	adminLn, err := lns.listenAdmin(s.AdminAddr, logger)
	if err != nil {
		return err
	}
	admin := newAdmin(adminLn, adminHandler([]*gateway.Side{side}, nil))
	hup := make(chan os.Signal, 1) // a wake-up
	signal.Notify(hup, syscall.SIGHUP)
	defer signal.Stop(hup)
	fmt.Fprintf(out, "wanfed gateway: listening on %s, %d routes\n", strings.Join(addrs, ", "), table.Len())
	g, gctx := errgroup.WithContext(ctx)
	g.Go(func() error { return proxy.Run(gctx, serving...) })
	g.Go(func() error { return admin.run(gctx) })
	g.Go(func() error { return reloadRoutes(gctx, hup, s.Routes, side, logger) })
	return g.Wait()
}

// reloadRoutes reads the file again at each signal. A file with a fault changes nothing.
func reloadRoutes(ctx context.Context, hup <-chan os.Signal, path string, side *gateway.Side, logger *slog.Logger) error {
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-hup:
		}
		table, err := readRoutes(path)
		if err != nil {
			logger.Error("routes not changed", "err", err)
			continue
		}
		side.SetTable(table)
		logger.Info("routes changed", "file", path, "routes", table.Len())
	}
}

// routeFile is the file's form.
type routeFile struct {
	Routes []struct {
		Match   string    `hcl:"match,label"`
		To      []string  `hcl:"to"`
		Ordered bool      `hcl:"ordered,optional"`
		At      hcl.Range `hcl:",def_range"`
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
		route := gateway.Route{Match: r.Match, To: r.To, Ordered: r.Ordered}
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
