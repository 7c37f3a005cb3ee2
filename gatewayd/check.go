// SPDX-License-Identifier: MPL-2.0

package gatewayd

import (
	"cmp"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"os"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/wanfed/wanfed/gateway"
	"github.com/wanfed/wanfed/internal/monitor"
	"github.com/wanfed/wanfed/internal/netaddr"
	"github.com/wanfed/wanfed/internal/settings"
	"github.com/wanfed/wanfed/tlsutil"
)

// Check returns all errors of the settings. It opens no file.
func (s Settings) Check() error {
	var errs errorList
	if s.standalone() {
		s.checkStandalone(&errs)
	} else {
		s.checkDatacenter(&errs)
		s.checkListenAddrs(&errs)
	}
	errs = append(errs, s.CheckAdminAddr(), s.checkMonitor())
	s.checkOverlap(&errs)
	s.checkKind(&errs)
	s.checkLimits(&errs)
	return settings.Join(append(errs, settings.CheckLog(s.LogLevel, s.LogFormat))...)
}

// CheckFiles returns the errors of the files that the settings name. It skips
// the certificate files if Check reports that settings for them are missing.
func (s Settings) CheckFiles() error {
	switch {
	case s.Routes != "":
		_, err := ReadRoutes(s.Routes)
		return err
	case s.Consul != "":
		return s.checkConsulFiles()
	case s.CAFile == "" || s.CertFile == "" || s.KeyFile == "",
		tlsutil.CheckDomain(s.domain()) != nil, tlsutil.CheckLabel(s.DC) != nil, tlsutil.CheckLabel(s.Node) != nil:
		return settings.CheckDir("data_dir", s.DataDir)
	}
	_, err := s.identity(slog.Default())
	return err
}

// errorList collects errors.
type errorList []error

func (l *errorList) addf(format string, args ...any) { *l = append(*l, fmt.Errorf(format, args...)) }

// checkDatacenter checks the settings that only the gateway of a datacenter
// has.
func (s Settings) checkDatacenter(errs *errorList) {
	for _, f := range []struct{ name, value, flag string }{
		{"dc", s.DC, "--dc dc1"}, {"node", s.Node, "--node gw1"},
		{"data_dir", s.DataDir, "--data-dir /var/lib/wanfed/gateway"},
		{"ca_file", s.CAFile, "--ca-file FILE"}, {"cert_file", s.CertFile, "--cert-file FILE"},
		{"key_file", s.KeyFile, "--key-file FILE"},
		{"lan", s.LAN, "--lan 10.0.0.5:8444"}, {"wan", s.WAN, "--wan 198.51.100.1:8443"},
	} {
		if f.value == "" && !(s.Consul != "" && strings.HasSuffix(f.name, "_file")) {
			errs.addf("%s is required, for example %s", f.name, f.flag)
		}
	}
	for _, f := range []struct{ name, label string }{{"dc", s.DC}, {"node", s.Node}} {
		if err := tlsutil.CheckLabel(f.label); f.label != "" && err != nil {
			errs.addf("%s: %w", f.name, err)
		}
	}
	if err := tlsutil.CheckDomain(s.domain()); err != nil {
		errs.addf("domain: %w", err)
	}
	if s.Consul != "" {
		s.checkConsul(errs)
	} else if len(s.Servers) == 0 {
		errs.addf("servers is empty; name at least one server of this datacenter, for example --server 10.0.0.5:8300")
	}
	for _, addr := range s.Servers {
		if err := netaddr.CheckHostPort(addr); err != nil {
			errs.addf("servers: %w", err)
		}
	}
	for _, id := range s.Protocols {
		if id == "" || len(id) > 255 {
			errs.addf("server_protocols: %q is not an ALPN protocol id; it has 1 to 255 bytes, for example h2", id)
		}
	}
}

// checkListenAddrs checks lan, wan and wan_bind.
func (s Settings) checkListenAddrs(errs *errorList) {
	for _, f := range []struct{ name, value string }{{"lan", s.LAN}, {"wan_bind", s.WANBind}} {
		if f.value != "" && !isIPPort(f.value) {
			errs.addf("%s %q is not ip:port", f.name, f.value)
		}
	}
	if s.WAN != "" && !isIPPort(s.WAN) {
		if err := netaddr.CheckHostPort(s.WAN); err != nil {
			errs.addf("wan: %w", err)
		} else if s.WANBind == "" {
			errs.addf("wan %q is a host name; set wan_bind to the ip:port to listen on", s.WAN)
		}
	}
	switch listen := cmp.Or(s.WANBind, s.WAN); {
	case netaddr.Overlap(s.LAN, s.WAN) && s.LAN == s.WAN:
		errs.addf("wan and lan are both %s; they have different routes, so each needs its own address", s.LAN)
	case netaddr.Overlap(s.LAN, listen):
		errs.addf("wan %s and lan %s overlap; they have different routes, so each needs its own address", listen, s.LAN)
	}
	for _, f := range []struct{ name, addr string }{{"lan", s.LAN}, {"wan", s.WAN}} {
		if ap, err := netip.ParseAddrPort(f.addr); err == nil && ap.Addr().IsUnspecified() {
			errs.addf("%s %q is unspecified and cannot be dialed; name the address that others dial", f.name, f.addr)
		}
	}
}

// datacenterSettings are the settings of the gateway of a datacenter for which
// a standalone gateway has no equivalent.
var datacenterSettings = []string{
	"dc", "node", "data_dir", "ca_file", "cert_file", "key_file", "servers", "consul", "server_protocols", "lan",
	"wan", "wan_bind",
}

func isSet(f settings.Field) bool {
	return !f.Value.IsZero() && (f.Value.Kind() != reflect.Slice || f.Value.Len() > 0)
}

// checkStandalone checks the settings that only a standalone gateway has, and
// that datacenterSettings are not set.
func (s Settings) checkStandalone(errs *errorList) {
	if len(s.Listen) == 0 {
		errs.addf("routes is set but listen is not; add a listen address, for example --listen 0.0.0.0:8443")
	}
	if s.Routes == "" {
		errs.addf("listen is set but routes is not; name the file of routes, for example --routes routes.hcl")
	}
	for _, addr := range s.Listen {
		if !isIPPort(addr) {
			errs.addf("listen %q is not ip:port", addr)
		}
	}
	var extra []string
	settings.Each(&s, func(f settings.Field) {
		if env := settings.EnvName(f.Name); !slices.Contains(datacenterSettings, f.Name) || !isSet(f) {
			return
		} else if os.Getenv(env) != "" {
			extra = append(extra, env+" in the environment")
		} else {
			extra = append(extra, f.Name)
		}
	})
	if len(extra) > 0 {
		errs.addf("a standalone gateway has no datacenter: remove %s, or remove listen and routes",
			strings.Join(extra, ", "))
	}
}

// CheckAdminAddr checks the setting admin_addr.
func (s Settings) CheckAdminAddr() error {
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
		return fmt.Errorf("admin_addr %q is not a loopback address; it has neither TLS nor authentication", s.AdminAddr)
	}
	return nil
}

// checkMonitor checks the settings of the monitor address.
func (s Settings) checkMonitor() error {
	if err := monitor.Check(s.MonitorAddr, s.MonitorTokenFile); err != nil {
		return err
	}
	if strings.HasPrefix(s.MonitorAddr, "https:") && (s.standalone() || s.Consul != "") {
		return fmt.Errorf("monitor_addr %q: this gateway has no certificate; write host:port", s.MonitorAddr)
	}
	return nil
}

func isIPPort(s string) bool {
	_, err := netip.ParseAddrPort(s)
	return err == nil
}

// checkOverlap adds an error for each pair of addresses on which this machine
// cannot listen at the same time. checkListenAddrs compares lan and wan.
func (s Settings) checkOverlap(errs *errorList) {
	for i, addr := range s.Listen {
		for _, other := range s.Listen[:i] {
			switch {
			case addr == other:
				errs.addf("listen has %s twice; remove one", addr)
			case netaddr.Overlap(addr, other):
				errs.addf("listen has %s and %s, which overlap; remove one", other, addr)
			}
		}
	}
	monitorAddr, _, _ := netaddr.ParseHTTP("monitor_addr", s.MonitorAddr) // checkMonitor reports the error
	if netaddr.Overlap(s.AdminAddr, monitorAddr) {
		errs.addf("admin_addr %s overlaps with monitor_addr %s; each needs its own address or port", s.AdminAddr, monitorAddr)
	}
	checkAdmin := func(setting, addr string) {
		for name, own := range map[string]string{"admin_addr": s.AdminAddr, "monitor_addr": monitorAddr} {
			if netaddr.Overlap(own, addr) {
				errs.addf("%s %s overlaps with %s %s; each needs its own address or port", name, own, setting, addr)
			}
		}
	}
	for _, addr := range s.Listen {
		checkAdmin("listen", addr)
	}
	checkAdmin("lan", s.LAN)
	if s.WANBind != "" {
		checkAdmin("wan_bind", s.WANBind)
	} else {
		checkAdmin("wan", s.WAN)
	}
}

// Settings of one kind of gateway, with the setting of the other kind that
// replaces them.
var (
	onlyStandalone = map[string]string{
		"allow": "lan_allow or wan_allow", "deny": "lan_deny or wan_deny",
		"proxy_protocol": "lan_proxy_protocol or wan_proxy_protocol",
	}
	onlyDatacenter = map[string]string{
		"lan_allow": "allow", "lan_deny": "deny", "lan_proxy_protocol": "proxy_protocol",
		"wan_allow": "allow", "wan_deny": "deny", "wan_proxy_protocol": "proxy_protocol",
	}
)

// checkKind adds an error for each setting of the other kind of gateway.
func (s Settings) checkKind(errs *errorList) {
	kind, replacements := "a standalone gateway", onlyStandalone
	if s.standalone() {
		kind, replacements = "the gateway of a datacenter", onlyDatacenter
	}
	settings.Each(&s, func(f settings.Field) {
		if use := replacements[f.Name]; use != "" && isSet(f) {
			errs.addf("%s is a setting of %s; use %s", f.Name, kind, use)
		}
	})
}

// Upper bounds of settings. They catch typing errors.
const (
	maxDelay  = time.Hour
	maxDrain  = 30 * 24 * time.Hour
	maxNumber = 1_000_000_000
)

// checkLimits checks limits, networks, durations and sampling.
func (s Settings) checkLimits(errs *errorList) {
	for _, f := range []struct {
		name       string
		value, min int
		meaning    string
	}{
		{"max_conns", s.MaxConns, 0, "0: as many as the limit of open files allows"},
		{"max_conns_per_source", s.MaxPerSource, -1, "0: three quarters of max_conns, -1: no limit"},
		{"max_rate_per_source", s.MaxRatePerSource, 0, "0: no limit"},
		{"max_conns_per_upstream", s.MaxPerUpstream, 0, "0: no limit"},
		{"access_log_sample", s.AccessLogSample, 1, "1: each connection, 100: one of 100; without access_log none"},
	} {
		if f.value < f.min || f.value > maxNumber {
			errs.addf("%s is %d: must be %d to %d; %s", f.name, f.value, f.min, maxNumber, f.meaning)
		}
	}
	for _, f := range []struct {
		name string
		list []string
	}{
		{"allow", s.Allow}, {"deny", s.Deny}, {"lan_allow", s.LANAllow}, {"lan_deny", s.LANDeny},
		{"wan_allow", s.WANAllow}, {"wan_deny", s.WANDeny}, {"proxy_protocol", s.ProxyProtocol},
		{"lan_proxy_protocol", s.LANProxyProtocol}, {"wan_proxy_protocol", s.WANProxyProtocol},
	} {
		*errs = append(*errs, settings.CheckNetworks(f.name, f.list))
	}
	for _, f := range []struct {
		name, value string
		max         time.Duration
	}{
		{"shutdown_delay", s.ShutdownDelay, maxDelay}, {"drain_time", s.DrainTime, maxDrain},
		{"hot_restart_drain_time", s.HotRestartDrainTime, maxDrain},
	} {
		switch d, err := time.ParseDuration(f.value); {
		case err != nil || d < 0:
			errs.addf("%s %q is not a duration; write, for example, 500ms, 30s or 10m", f.name, f.value)
		case d > f.max:
			errs.addf("%s is %s: must be %v or less; a stopping gateway keeps running for this time",
				f.name, f.value, f.max)
		}
	}
}

// checkOpenFiles returns an error if this process may not open enough files for
// max_conns. The default of max_conns always fits.
func (s Settings) checkOpenFiles() error {
	if s.MaxConns == 0 {
		return nil
	}
	if err := gateway.CheckFiles(s.MaxConns); err != nil {
		return fmt.Errorf("max_conns %d: %w", s.MaxConns, err)
	}
	return nil
}
