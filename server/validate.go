// SPDX-License-Identifier: MPL-2.0

package server

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/wanfed/wanfed/gossip"
	"github.com/wanfed/wanfed/internal/monitor"
	"github.com/wanfed/wanfed/internal/netaddr"
	"github.com/wanfed/wanfed/internal/settings"
	"github.com/wanfed/wanfed/policy"
	"github.com/wanfed/wanfed/server/audit"
	"github.com/wanfed/wanfed/server/operator"
	"github.com/wanfed/wanfed/tlsutil"
	"github.com/wanfed/wanfed/wanfed"
)

// CheckSettings returns all faults of cfg, joined, or nil. It reads no file.
func CheckSettings(cfg Config) error { return errors.Join(cfg.withDefaults().check()...) }

// CheckFiles returns all faults of the files and directories that cfg names,
// joined, or nil. It does not report missing settings, because CheckSettings
// reports them. It does not change any file.
func CheckFiles(cfg Config) error {
	cfg = cfg.withDefaults()
	_, err := cfg.checkFiles()
	return errors.Join(err, cfg.checkIssuing())
}

func (c Config) validate() (*tlsutil.Identity, error) {
	id, err := c.checkFiles()
	return id, errors.Join(errors.Join(c.check()...), err)
}

// checkFiles checks the files, and returns the identity of the certificate. The
// certificate is not checked while settings that it must match are invalid.
func (c Config) checkFiles() (*tlsutil.Identity, error) {
	errs := []error{settings.CheckDir("data_dir", c.DataDir)}
	if c.AuditLog != "" {
		errs = append(errs, settings.CheckDir("the directory of audit_log", filepath.Dir(c.AuditLog)))
	}
	if c.EncryptFile != "" {
		_, err := gossip.ReadKeyFile(c.EncryptFile, nil)
		errs = append(errs, err)
	}
	if c.CAFile == "" || c.CertFile == "" || c.KeyFile == "" ||
		tlsutil.CheckDomain(c.Domain) != nil || tlsutil.CheckLabel(c.DC) != nil || tlsutil.CheckLabel(c.Node) != nil {
		return nil, errors.Join(errs...)
	}
	id, err := c.loadIdentity()
	return id, errors.Join(append(errs, err)...)
}

// loadIdentity loads the certificate and checks that it belongs to this server.
func (c Config) loadIdentity() (*tlsutil.Identity, error) {
	id, err := tlsutil.Load(tlsutil.Files{CA: c.CAFile, Cert: c.CertFile, Key: c.KeyFile}, c.Domain, c.Logger)
	if err != nil {
		return nil, err
	}
	return id, id.VerifySubject(tlsutil.RoleServer, c.Node, c.DC)
}

// check returns the faults that can be found without files.
func (c Config) check() (errs []error) {
	fault := func(format string, args ...any) { errs = append(errs, fmt.Errorf(format, args...)) }
	for _, f := range []struct{ name, value, example string }{
		{"dc", c.DC, "--dc dc1"}, {"node", c.Node, "--node srv1"},
	} {
		if f.value == "" {
			fault("%s is required, for example %s", f.name, f.example)
		} else if err := tlsutil.CheckLabel(f.value); err != nil {
			fault("%s: %w", f.name, err)
		}
	}
	// otherwise reported as a fault of dc
	if err := tlsutil.CheckLabel(c.PrimaryDC); err != nil && c.PrimaryDC != c.DC {
		fault("primary_datacenter: %w", err)
	}
	if err := tlsutil.CheckDomain(c.Domain); err != nil {
		fault("domain: %w", err)
	}
	for _, f := range []struct{ name, value, flag string }{
		{"data_dir", c.DataDir, "--data-dir"}, {"ca_file", c.CAFile, "--ca-file"},
		{"cert_file", c.CertFile, "--cert-file"}, {"key_file", c.KeyFile, "--key-file"},
	} {
		if f.value == "" {
			fault("%s is required: set %s", f.name, f.flag)
		}
	}
	errs = append(errs, c.checkFederation()...)
	errs = append(errs, c.checkAddresses()...)
	switch c.BootstrapExpect {
	case 0, 1: // withDefaults leaves 0 only with retry_join
	case 3, 5:
		if len(c.RetryJoin) == 0 {
			fault("bootstrap_expect is %d but retry_join is empty: name the other servers, for example --retry-join "+
				"10.0.0.2:8300",
				c.BootstrapExpect)
		}
	default:
		fault("bootstrap_expect is %d: must be 1, 3 or 5", c.BootstrapExpect)
	}
	if err := tlsutil.CheckLife(c.CertLife); c.CertLife != 0 && err != nil {
		fault("cert_life: %w", err)
	}
	if c.PrimaryLease != 0 && c.PrimaryLease < MinPrimaryLease {
		fault("primary_lease is %v: must be %v or more", c.PrimaryLease, MinPrimaryLease)
	}
	switch {
	case c.DeadServerAfter < MinDeadServerAfter:
		fault("dead_server_after is %v: must be %v or more, because a removed server that returns has no vote for %v",
			c.DeadServerAfter, MinDeadServerAfter, operator.StableTime)
	case c.DeadServerAfter > MaxDeadServerAfter:
		fault("dead_server_after is %v: must be %v (a year) or less", c.DeadServerAfter, MaxDeadServerAfter)
	}
	if c.SnapshotEvery != 0 && c.SnapshotEvery < time.Second {
		fault("snapshot_every is %v: must be 1s or more, or 0 for none", c.SnapshotEvery)
	}
	if c.SnapshotKeep < 1 {
		fault("snapshot_keep is %d: must be 1 or more", c.SnapshotKeep)
	}
	if c.AuditLogKeep < 1 {
		fault("audit_log_keep is %d: must be 1 or more", c.AuditLogKeep)
	}
	if c.AuditLogMaxSize < 0 {
		fault("audit_log_max_size is %d: must be 1 or more, or 0 for no rotation", c.AuditLogMaxSize)
	}
	errs = append(errs, audit.CheckWhenFull(c.AuditLogWhenFull))
	return errs
}

func (c Config) checkFederation() (errs []error) {
	fault := func(format string, args ...any) { errs = append(errs, fmt.Errorf(format, args...)) }
	switch {
	case c.DC == "": // reported by check
	case c.primaryByDefault && len(c.PrimaryGateways) > 0: // usually a secondary without primary_datacenter
		fault("primary_gateways is set, but %s is the primary itself: remove primary_gateways, "+
			"or set primary_datacenter to another datacenter or to %s", c.DC, c.DC)
	case c.DC != c.PrimaryDC && len(c.PrimaryGateways) == 0:
		fault("primary_gateways is missing: %s is a secondary of %s and needs at least one WAN address of a "+
			"gateway there, for example --primary-gateway gw.%s.example.com:8443", c.DC, c.PrimaryDC, c.PrimaryDC)
	}
	if err := wanfed.Mode(c.MeshGatewayMode).Check(); err != nil {
		fault("mesh_gateway_mode %w", err)
	}
	for _, addr := range c.PrimaryGateways {
		if err := netaddr.CheckHostPort(addr); err != nil {
			fault("primary_gateways: %w", err)
		}
	}
	for _, f := range []struct {
		name string
		dcs  []string
	}{{"operators_from", c.OperatorsFrom}, {"reads_from", c.ReadsFrom}, {"allow_remote_writes_from", c.AllowRemoteWritesFrom}} {
		for _, dc := range f.dcs {
			if err := tlsutil.CheckLabel(dc); err != nil && dc != policy.AnyDatacenter {
				fault("%s: %w; name datacenters, or write %q for all datacenters", f.name, err, policy.AnyDatacenter)
			}
		}
	}
	for _, addr := range c.RetryJoin {
		if err := netaddr.CheckHostPort(addr); err != nil {
			fault("retry_join: %w", err)
		}
	}
	return errs
}

func (c Config) checkAddresses() (errs []error) {
	fault := func(format string, args ...any) { errs = append(errs, fmt.Errorf(format, args...)) }
	if _, err := netip.ParseAddr(c.Bind); err != nil {
		fault("bind %q is not an IP address", c.Bind)
	}
	if c.Advertise != "" {
		ip, err := netip.ParseAddr(c.Advertise)
		switch {
		case err != nil:
			fault("advertise %q is not an IP address", c.Advertise)
		case ip.IsUnspecified():
			fault("advertise %q is unspecified: other servers cannot dial it", c.Advertise)
		}
	}
	if c.Port > 65535 {
		fault("port is %d: must be 0 to 65535", c.Port)
	}
	http, _, err := c.parseHTTPAddr()
	if err != nil {
		errs = append(errs, err)
	}
	tls := net.JoinHostPort(c.Bind, strconv.Itoa(c.Port))
	if err == nil && netaddr.Overlap(http, tls) {
		fault("http_addr %q overlaps with bind and port, %s: each needs its own address or port", c.HTTPAddr, tls)
	}
	if c.HTTPSocketMode&^0o777 != 0 {
		fault("http_socket_mode is %04o: must be 0000 to 0777", c.HTTPSocketMode)
	}
	return append(errs, c.checkProxyFrom(), c.checkMonitor(http, tls))
}

// checkMonitor checks the settings of the monitor address, which must differ
// from the addresses in others.
func (c Config) checkMonitor(others ...string) error {
	if err := monitor.Check(c.MonitorAddr, c.MonitorTokenFile); err != nil || c.MonitorAddr == "" {
		return err
	}
	addr, _, err := netaddr.ParseHTTP("monitor_addr", c.MonitorAddr)
	for _, other := range others {
		if err == nil && netaddr.Overlap(addr, other) {
			err = fmt.Errorf("monitor_addr %q overlaps with %s: each needs its own address or port", c.MonitorAddr, other)
		}
	}
	return err
}

// checkProxyFrom rejects networks that contain servers of this datacenter,
// because connections between servers have no PROXY header.
func (c Config) checkProxyFrom() error {
	type setting struct{ name, host string }
	servers := []setting{{"bind", c.Bind}, {"advertise", c.Advertise}}
	for _, addr := range c.RetryJoin {
		if host, _, err := net.SplitHostPort(addr); err == nil {
			servers = append(servers, setting{"retry_join", host})
		}
	}
	for _, p := range c.ProxyFrom {
		if !p.IsValid() {
			return errors.New("proxy_protocol has an entry that is not a network")
		}
		for _, s := range servers {
			if ip, err := netip.ParseAddr(s.host); err == nil && !ip.IsUnspecified() && p.Contains(ip.Unmap()) {
				return fmt.Errorf("proxy_protocol %s contains %s, the address of a server (%s): servers send no "+
					"PROXY header; "+
					"name only load balancers", p, ip, s.name)
			}
		}
	}
	return nil
}

// parseHTTPAddr returns the host:port of http_addr, and whether it uses TLS.
func (c Config) parseHTTPAddr() (addr string, useTLS bool, err error) {
	s := c.HTTPAddr
	addr, useTLS, err = netaddr.ParseHTTP("http_addr", s)
	switch {
	case err != nil || useTLS:
		return addr, useTLS, err
	case c.HTTPTLSOnly && strings.HasPrefix(s, "http://"):
		return "", false, fmt.Errorf("http_addr %q has no TLS, and http_plain is false: write https://%s", s, addr)
	case c.HTTPTLSOnly:
		return addr, true, nil
	}
	host, _, _ := net.SplitHostPort(addr)
	if ip, err := netip.ParseAddr(host); host != "localhost" && (err != nil || !ip.IsLoopback()) {
		return "", false,
			fmt.Errorf("http_addr %q is not a loopback address: other addresses need TLS and client certificates; "+
				"write https://%s", s, addr)
	}
	return addr, false, nil
}

// advertiseAddr returns the address that other servers dial. The argument
// listen is the address of the TLS listener.
func (c Config) advertiseAddr(listen net.Addr) (netip.AddrPort, error) {
	ip, err := c.advertiseIP()
	if errors.Is(err, errNoAddress) {
		err = fmt.Errorf("%w: set --advertise", err)
	}
	return netip.AddrPortFrom(ip, uint16(listen.(*net.TCPAddr).Port)), err
}

// errNoAddress is an error without the remedy, which depends on the flag.
var errNoAddress = errors.New("this machine has no address that other machines can dial")

// LANAddress returns the IP address that other machines of the datacenter dial:
// advertise, or, if it is empty, the default of Config.Advertise.
func LANAddress(advertise string) (netip.Addr, error) {
	ip, err := Config{Advertise: advertise, Bind: DefaultBind}.advertiseIP()
	if errors.Is(err, errNoAddress) {
		err = fmt.Errorf("%w: set one that the machines of its datacenter dial", err)
	}
	if err == nil && ip.IsUnspecified() {
		err = fmt.Errorf("%s is unspecified: other machines cannot dial it", ip)
	}
	return ip, err
}

func (c Config) advertiseIP() (netip.Addr, error) {
	if c.Advertise != "" {
		return netip.ParseAddr(c.Advertise)
	}
	bind, err := netip.ParseAddr(c.Bind)
	if err != nil || !bind.IsUnspecified() {
		return bind, err
	}
	ifaces, err := net.InterfaceAddrs()
	if err != nil {
		return netip.Addr{}, fmt.Errorf("list the addresses of this machine: %w", err)
	}
	var global netip.Addr
	for _, a := range ifaces {
		p, err := netip.ParsePrefix(a.String())
		if err != nil || !p.Addr().IsGlobalUnicast() {
			continue
		}
		if p.Addr().IsPrivate() {
			return p.Addr(), nil
		}
		if !global.IsValid() {
			global = p.Addr()
		}
	}
	if !global.IsValid() {
		return global, errNoAddress
	}
	return global, nil
}
