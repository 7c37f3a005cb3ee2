// SPDX-License-Identifier: MPL-2.0

package server

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"net/url"
	"strconv"
	"strings"
)

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
	http, _, err := parseHTTPAddr(c.HTTPAddr)
	if err != nil {
		errs = append(errs, err)
	}
	own := net.JoinHostPort(c.Bind, strconv.Itoa(c.Port))
	if err == nil && SamePort(http, own) {
		errs = append(errs, fmt.Errorf("http_addr %q is within what bind and port say, %s: each needs an address, or a port, of its own", c.HTTPAddr, own))
	}
	return append(errs, c.checkProxyFrom())
}

// SamePort says whether one machine cannot listen on both addresses, host:port each: the port is the same, and the host is too or
// stands for all. Names other than localhost, and port 0, which the system chooses, tell nothing.
func SamePort(a, b string) bool {
	x, xPort, ok1 := listenAddr(a)
	y, yPort, ok2 := listenAddr(b)
	return ok1 && ok2 && xPort == yPort && xPort != 0 && (x == y || x.IsUnspecified() || y.IsUnspecified())
}

// listenAddr is what Go listens on for addr.
func listenAddr(addr string) (ip netip.Addr, port uint64, ok bool) {
	host, text, err := net.SplitHostPort(addr)
	if err != nil {
		return ip, 0, false
	}
	port, err = strconv.ParseUint(text, 10, 16)
	switch host {
	case "":
		return netip.IPv6Unspecified(), port, err == nil
	case "localhost":
		return netip.AddrFrom4([4]byte{127, 0, 0, 1}), port, err == nil
	}
	if err == nil {
		ip, err = netip.ParseAddr(host)
	}
	return ip.Unmap(), port, err == nil
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
