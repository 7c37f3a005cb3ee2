// SPDX-License-Identifier: MPL-2.0

package server

import (
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"net/url"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/wanfed/wanfed/pool"
	"github.com/wanfed/wanfed/tlsutil"
	"github.com/wanfed/wanfed/wanfed"
)

// Defaults.
const (
	DefaultPort     = 8300
	DefaultHTTPAddr = "127.0.0.1:8500"
	DefaultBind     = "0.0.0.0"

	DefaultDeadServerAfter = 10 * time.Minute
	MinDeadServerAfter     = time.Second
)

// withDefaults fills what was left empty.
func (c Config) withDefaults() Config {
	if c.Domain == "" {
		c.Domain = tlsutil.DefaultDomain
	}
	if c.PrimaryDC == "" {
		c.PrimaryDC = c.DC
	}
	if c.Bind == "" {
		c.Bind = DefaultBind
	}
	switch c.Port {
	case 0:
		c.Port = DefaultPort
	case -1:
		c.Port = 0
	}
	if c.HTTPAddr == "" {
		c.HTTPAddr = DefaultHTTPAddr
	}
	if c.MeshGatewayMode == "" {
		c.MeshGatewayMode = string(wanfed.ModeLocal)
	}
	if c.BootstrapExpect == 0 {
		c.BootstrapExpect = 1
	}
	if c.DeadServerAfter == 0 {
		c.DeadServerAfter = DefaultDeadServerAfter
	}
	if c.Logger == nil {
		c.Logger = slog.Default()
	}
	return c
}

// CheckSettings returns everything that is wrong with cfg itself, joined, or nil. It looks at no file.
func CheckSettings(cfg Config) error { return errors.Join(cfg.withDefaults().check()...) }

// CheckFiles returns everything that is wrong with the files and folders that cfg names, joined, or nil. What is missing in
// cfg is for CheckSettings to say. It changes nothing.
func CheckFiles(cfg Config) error {
	_, err := cfg.withDefaults().files()
	return err
}

// Validate is CheckSettings and CheckFiles.
func Validate(cfg Config) error {
	_, err := cfg.withDefaults().validate()
	return err
}

func (c Config) validate() (*tlsutil.Identity, error) {
	id, err := c.files()
	return id, errors.Join(errors.Join(c.check()...), err)
}

// files checks the files, and gives the certificate. Whose it is can be checked only where that is known.
func (c Config) files() (*tlsutil.Identity, error) {
	errs := []error{CheckFolder("data_dir", c.DataDir)}
	if c.EncryptFile != "" {
		_, err := pool.ReadKey(c.EncryptFile, nil)
		errs = append(errs, err)
	}
	if c.CAFile == "" || c.CertFile == "" || c.KeyFile == "" ||
		tlsutil.CheckDomain(c.Domain) != nil || tlsutil.CheckLabel(c.DC) != nil || tlsutil.CheckLabel(c.Node) != nil {
		return nil, errors.Join(errs...)
	}
	id, err := c.identity()
	return id, errors.Join(append(errs, err)...)
}

// CheckFolder returns an error, which names the setting, for a path at which there is something else than a folder. One that
// is not there yet, or no path at all, is no fault.
func CheckFolder(setting, path string) error {
	if path == "" {
		return nil
	}
	if st, err := os.Stat(path); err == nil && !st.IsDir() {
		return fmt.Errorf("%s %s is a file, not a folder: name a folder, or move the file away", setting, filepath.Clean(path))
	}
	return nil
}

// identity loads the certificate and checks that it is this server's.
func (c Config) identity() (*tlsutil.Identity, error) {
	id, err := tlsutil.Load(tlsutil.Files{CA: c.CAFile, Cert: c.CertFile, Key: c.KeyFile}, c.Domain, c.Logger)
	if err != nil {
		return nil, err
	}
	return id, id.CheckHolder(tlsutil.RoleServer, c.Node, c.DC)
}

// check finds faults that need no file.
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
	if err := tlsutil.CheckLabel(c.PrimaryDC); err != nil && c.PrimaryDC != c.DC { // by default they are the same: one fault
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
	case 1:
	case 3, 5:
		if len(c.RetryJoin) == 0 {
			fault("bootstrap_expect is %d but retry_join is empty: name the other servers, for example --retry-join 10.0.0.2:8300", c.BootstrapExpect)
		}
	default:
		fault("bootstrap_expect is %d: must be 1, 3 or 5", c.BootstrapExpect)
	}
	if c.DeadServerAfter < MinDeadServerAfter {
		fault("dead_server_after is %v: must be %v or more", c.DeadServerAfter, MinDeadServerAfter)
	}
	return errs
}

func (c Config) checkFederation() (errs []error) {
	switch {
	case c.DC == "": // told already, and no more to tell without it
	case c.DC == c.PrimaryDC && len(c.PrimaryGateways) > 0:
		errs = append(errs, fmt.Errorf("primary_gateways is set, but %s is the primary itself: remove it, or name another primary_datacenter", c.DC))
	case c.DC != c.PrimaryDC && len(c.PrimaryGateways) == 0:
		errs = append(errs, fmt.Errorf("primary_gateways is missing: %s is a secondary of %s and needs at least one WAN address of a gateway there, "+
			"for example --primary-gateway gw.%s.example.com:8443", c.DC, c.PrimaryDC, c.PrimaryDC))
	}
	if err := wanfed.Mode(c.MeshGatewayMode).Check(); err != nil {
		errs = append(errs, fmt.Errorf("mesh_gateway_mode %w", err))
	}
	for _, addr := range c.PrimaryGateways {
		if err := checkHostPort(addr); err != nil {
			errs = append(errs, fmt.Errorf("primary_gateways: %w", err))
		}
	}
	for _, dc := range c.RemoteWritesFrom {
		if err := tlsutil.CheckLabel(dc); err != nil && dc != anyDatacenter {
			errs = append(errs, fmt.Errorf("remote_writes_from: %w; name datacenters, or write %q for every one", err, anyDatacenter))
		}
	}
	for _, addr := range c.RetryJoin {
		if err := checkHostPort(addr); err != nil {
			errs = append(errs, fmt.Errorf("retry_join: %w", err))
		}
	}
	return errs
}

func checkHostPort(addr string) error {
	host, port, err := net.SplitHostPort(addr)
	if err != nil || host == "" {
		return fmt.Errorf("%q is not host:port (an IPv6 address goes in brackets: [2001:db8::1]:8443)", addr)
	}
	if n, err := strconv.ParseUint(port, 10, 16); err != nil || n == 0 {
		return fmt.Errorf("%q: port is not a number from 1 to 65535", addr)
	}
	return nil
}

func (c Config) checkAddresses() (errs []error) {
	if _, err := netip.ParseAddr(c.Bind); err != nil {
		errs = append(errs, fmt.Errorf("bind %q is not an IP address", c.Bind))
	}
	if c.Advertise != "" {
		ip, err := netip.ParseAddr(c.Advertise)
		switch {
		case err != nil:
			errs = append(errs, fmt.Errorf("advertise %q is not an IP address", c.Advertise))
		case ip.IsUnspecified():
			errs = append(errs, fmt.Errorf("advertise %q is unspecified: other servers cannot dial it", c.Advertise))
		}
	}
	if c.Port < 0 || c.Port > 65535 {
		errs = append(errs, fmt.Errorf("port is %d: must be 0 to 65535", c.Port))
	}
	if _, _, err := parseHTTPAddr(c.HTTPAddr); err != nil {
		errs = append(errs, err)
	}
	return append(errs, c.checkProxyFrom())
}

// checkProxyFrom refuses networks in which servers of this datacenter are: these dial each other, and send no PROXY header.
func (c Config) checkProxyFrom() error {
	known := []struct{ setting, host string }{{"bind", c.Bind}, {"advertise", c.Advertise}}
	for _, addr := range c.RetryJoin {
		if host, _, err := net.SplitHostPort(addr); err == nil {
			known = append(known, struct{ setting, host string }{"retry_join", host})
		}
	}
	for _, p := range c.ProxyFrom {
		if !p.IsValid() {
			return errors.New("proxy_protocol has something that is no network")
		}
		for _, k := range known {
			if ip, err := netip.ParseAddr(k.host); err == nil && !ip.IsUnspecified() && p.Contains(ip.Unmap()) {
				return fmt.Errorf("proxy_protocol %s has %s, a server's address (%s): servers send no PROXY header; name the gateways alone", p, ip, k.setting)
			}
		}
	}
	return nil
}

// parseHTTPAddr splits http_addr into host:port and whether TLS is spoken there.
func parseHTTPAddr(s string) (addr string, useTLS bool, err error) {
	scheme, addr := "http", s
	if strings.Contains(s, "://") {
		u, err := url.Parse(s)
		if err != nil || (u.Path != "" && u.Path != "/") || u.RawQuery != "" || u.User != nil {
			return "", false, fmt.Errorf("http_addr %q is not host:port, http://host:port or https://host:port", s)
		}
		scheme, addr = u.Scheme, u.Host
	}
	host, port, err := net.SplitHostPort(addr)
	if err != nil {
		return "", false, fmt.Errorf("http_addr %q has no port", s)
	}
	if _, err := strconv.ParseUint(port, 10, 16); err != nil {
		return "", false, fmt.Errorf("http_addr %q: port is not a number up to 65535", s)
	}
	switch scheme {
	case "https":
		return addr, true, nil
	case "http":
	default:
		return "", false, fmt.Errorf("http_addr %q: scheme is neither http nor https", s)
	}
	if ip, err := netip.ParseAddr(host); host != "localhost" && (err != nil || !ip.IsLoopback()) {
		return "", false, fmt.Errorf("http_addr %q is not a loopback address: HTTP there needs TLS and client certificates; write https://%s", s, addr)
	}
	return addr, false, nil
}

// advertiseIP chooses the address that other servers dial.
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
		return netip.Addr{}, fmt.Errorf("list this machine's addresses: %w", err)
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
		return global, errors.New("this machine has no address other servers could dial: set --advertise")
	}
	return global, nil
}
