// SPDX-License-Identifier: MPL-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
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
		{"server_protocols", len(s.Protocols) > 0},
	} {
		switch {
		case f.set && os.Getenv(envName(f.name)) != "":
			foreign = append(foreign, envName(f.name)+" of the environment")
		case f.set:
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
	l, err := p.addListener(listenerAlone, "listen", s.Listen...)
	if err != nil {
		return err
	}
	l.SetTable(table)
	var addrs []string
	for i, addr := range s.Listen {
		addrs = append(addrs, withPort(addr, l.Addrs()[i]))
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
