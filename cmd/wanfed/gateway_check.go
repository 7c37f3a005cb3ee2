// SPDX-License-Identifier: MPL-2.0

package main

import (
	"errors"
	"fmt"
	"io"
	"maps"
	"net"
	"net/netip"
	"slices"
	"strconv"

	"github.com/wanfed/wanfed/internal/netaddr"
	"github.com/wanfed/wanfed/tlsutil"
)

// check returns everything that is wrong with the settings, without opening files.
func (s gatewaySettings) check() error {
	_, log := newLogger(io.Discard, s.LogLevel, s.LogFormat)
	if s.alone() {
		return faults(s.checkAlone(), s.checkAdmin(), s.checkApart(), s.checkMixed(), s.checkLimits(), log)
	}
	var errs []error
	fault := func(format string, args ...any) { errs = append(errs, fmt.Errorf(format, args...)) }
	for _, f := range []struct{ name, value, flag string }{
		{"dc", s.DC, "--dc dc1"}, {"node", s.Node, "--node gw1"}, {"data_dir", s.DataDir, "--data-dir /var/lib/wanfed/gateway"},
		{"ca_file", s.CAFile, "--ca-file FILE"}, {"cert_file", s.CertFile, "--cert-file FILE"}, {"key_file", s.KeyFile, "--key-file FILE"},
		{"lan", s.LAN, "--lan 10.0.0.5:8444"}, {"wan", s.WAN, "--wan 198.51.100.1:8443"},
	} {
		if f.value == "" {
			fault("%s is required, for example %s", f.name, f.flag)
		}
	}
	for _, f := range []struct{ name, label string }{{"dc", s.DC}, {"node", s.Node}} {
		if err := tlsutil.CheckLabel(f.label); f.label != "" && err != nil {
			fault("%s: %w", f.name, err)
		}
	}
	if err := tlsutil.CheckDomain(s.Domain); err != nil {
		fault("domain: %w", err)
	}
	if len(s.Servers) == 0 {
		fault("servers is empty: name at least one server of this datacenter, for example --server 10.0.0.5:8300")
	}
	for _, addr := range s.Servers {
		if err := netaddr.CheckHostPort(addr); err != nil {
			fault("servers: %w", err)
		}
	}
	for _, id := range s.Protocols {
		if id == "" || len(id) > 255 {
			fault("server_protocols: %q is no protocol id (ALPN): it has 1 to 255 bytes, such as h2", id)
		}
	}
	for _, f := range []struct{ name, value string }{{"lan", s.LAN}, {"wan_bind", s.WANBind}} {
		if f.value != "" && !isIPPort(f.value) {
			fault("%s %q is not ip:port", f.name, f.value)
		}
	}
	if s.WAN != "" {
		if err := netaddr.CheckHostPort(s.WAN); err != nil && !isIPPort(s.WAN) {
			fault("wan: %w", err)
		} else if s.WANBind == "" && !isIPPort(s.WAN) {
			fault("wan %q is a name: say with wan_bind which ip:port to listen on", s.WAN)
		}
	}
	switch listen := or(s.WANBind, s.WAN); {
	case netaddr.Overlap(s.LAN, s.WAN) && s.LAN == s.WAN:
		fault("wan and lan are both %s: they have different routes, so each needs an address of its own", s.LAN)
	case netaddr.Overlap(s.LAN, listen):
		fault("wan %s and lan %s cannot both be listened on: they have different routes, so each needs an address of its own", listen, s.LAN)
	}
	for _, f := range []struct{ name, addr string }{{"lan", s.LAN}, {"wan", s.WAN}} {
		if ap, err := netip.ParseAddrPort(f.addr); err == nil && ap.Addr().IsUnspecified() {
			fault("%s %q is unspecified: nobody can dial it; name the address that others dial", f.name, f.addr)
		}
	}
	return faults(append(errs, s.checkAdmin(), s.checkApart(), s.checkMixed(), s.checkLimits(), log)...)
}

func (s gatewaySettings) checkAdmin() error {
	if s.AdminAddr == "" {
		return nil
	}
	host, port, err := net.SplitHostPort(s.AdminAddr)
	if err != nil {
		return fmt.Errorf("admin_addr %q is not host:port", s.AdminAddr)
	}
	if _, err := strconv.ParseUint(port, 10, 16); err != nil {
		return fmt.Errorf("admin_addr %q: port is not a number from 0 to 65535", s.AdminAddr)
	}
	if ip, err := netip.ParseAddr(host); host != "localhost" && (err != nil || !ip.IsLoopback()) {
		return fmt.Errorf("admin_addr %q is not a loopback address: it has neither TLS nor a password", s.AdminAddr)
	}
	return nil
}

func isIPPort(s string) bool {
	_, err := netip.ParseAddrPort(s)
	return err == nil
}

// checkApart returns an error for each two addresses of which this machine could listen on one alone. Those of lan and wan are for
// check, which knows more of them.
func (s gatewaySettings) checkApart() error {
	var errs []error
	for i, addr := range s.Listen {
		for _, other := range s.Listen[:i] {
			switch {
			case addr == other:
				errs = append(errs, fmt.Errorf("listen has %s twice: once is enough", addr))
			case netaddr.Overlap(addr, other):
				errs = append(errs, fmt.Errorf("listen has %s and %s, of which the one is within the other: leave one out", other, addr))
			}
		}
	}
	sides := map[string][]string{"listen": s.Listen, "lan": {s.LAN}, "wan": {s.WAN}}
	if s.WANBind != "" {
		sides["wan"], sides["wan_bind"] = nil, []string{s.WANBind}
	}
	for _, name := range slices.Sorted(maps.Keys(sides)) {
		for _, addr := range sides[name] {
			if netaddr.Overlap(s.AdminAddr, addr) {
				errs = append(errs, fmt.Errorf("admin_addr %s is within %s %s: each needs an address, or a port, of its own", s.AdminAddr, name, addr))
			}
		}
	}
	return errors.Join(errs...)
}
