// SPDX-License-Identifier: MPL-2.0

package main

import (
	"errors"
	"fmt"
	"net/netip"
	"time"

	"github.com/wanfed/wanfed/gateway"
)

// The listeners of a gateway, as settings, logs and metrics name them.
const (
	listenerLAN   = "lan"
	listenerWAN   = "wan"
	listenerAlone = "listen" // of a gateway on a route file
)

// sharePerSource is which part of max_conns one source may have, where it is not said.
const sharePerSource = 0.75

// Bounds of settings: what is above them was written by mistake.
const (
	maxGrace  = time.Hour
	maxDrain  = 30 * 24 * time.Hour
	mostConns = 1_000_000_000
	maxSample = 1_000_000_000
)

// checkLimits returns what is wrong with the settings of limits, drain and access log.
func (s gatewaySettings) checkLimits() error {
	var errs []error
	for _, f := range []struct {
		name               string
		value, least, most int
		meaning            string
	}{
		{"max_conns", s.MaxConns, 0, mostConns, "0 is as many as files allow"},
		{"max_conns_per_source", s.MaxPerSource, -1, mostConns, "0 is three quarters of all, -1 no limit"},
		{"max_conns_per_upstream", s.MaxPerUpstream, 0, mostConns, "0 is no limit"},
		{"access_log_sample", s.AccessLogSample, 1, maxSample, "1 notes each connection, 100 one of a hundred; without access_log none is noted"},
	} {
		if f.value < f.least || f.value > f.most {
			errs = append(errs, fmt.Errorf("%s is %d: must be %d to %d; %s", f.name, f.value, f.least, f.most, f.meaning))
		}
	}
	for _, f := range []struct {
		name string
		list []string
	}{
		{"allow", s.Allow}, {"deny", s.Deny}, {"lan_allow", s.LANAllow}, {"lan_deny", s.LANDeny},
		{"wan_allow", s.WANAllow}, {"wan_deny", s.WANDeny},
		{"proxy_protocol", s.ProxyProtocol}, {"lan_proxy_protocol", s.LANProxyProtocol}, {"wan_proxy_protocol", s.WANProxyProtocol},
	} {
		for _, cidr := range f.list {
			if _, err := parseNetwork(cidr); err != nil {
				errs = append(errs, fmt.Errorf("%s: %w", f.name, err))
			}
		}
	}
	for _, f := range []struct {
		name, value string
		most        time.Duration
	}{
		{"drain_grace", s.DrainGrace, maxGrace}, {"drain_time", s.DrainTime, maxDrain}, {"handover_drain_time", s.HandoverDrainTime, maxDrain},
	} {
		switch d, err := time.ParseDuration(f.value); {
		case err != nil || d < 0:
			errs = append(errs, fmt.Errorf("%s %q is not a length of time: write, for example, 500ms, 30s or 10m", f.name, f.value))
		case d > f.most:
			errs = append(errs, fmt.Errorf("%s is %s: must be %v or less; a gateway that was told to stop runs on for that long", f.name, f.value, f.most))
		}
	}
	return faults(errs...)
}

// parseNetwork reads an IP network, or one address.
func parseNetwork(s string) (netip.Prefix, error) {
	if addr, err := netip.ParseAddr(s); err == nil && addr.Zone() == "" {
		return netip.PrefixFrom(addr, addr.BitLen()), nil
	}
	p, err := netip.ParsePrefix(s)
	if err != nil {
		return p, fmt.Errorf("%q is no network: write, for example, 10.0.0.0/8, 2001:db8::/32 or one address", s)
	}
	if p != p.Masked() {
		return p, fmt.Errorf("%q is an address in a network: write %s for the network, %s for the address", s, p.Masked(), p.Addr())
	}
	return p, nil
}

// networks reads a list that checkLimits has seen.
func networks(list []string) []netip.Prefix {
	var out []netip.Prefix
	for _, s := range list {
		if p, err := parseNetwork(s); err == nil {
			out = append(out, p)
		}
	}
	return out
}

// policy returns the admission policy of a listener. maxConns is the limit of
// all listeners together.
func (s gatewaySettings) policy(listener string, maxConns int) gateway.Policy {
	p := gateway.Policy{MaxPerSource: s.MaxPerSource}
	if s.MaxPerSource == 0 {
		p.MaxPerSource = max(1, int(sharePerSource*float64(maxConns)))
	}
	switch listener {
	case listenerLAN:
		p.Allow, p.Deny = networks(s.LANAllow), networks(s.LANDeny)
		p.ProxyFrom = networks(s.LANProxyProtocol)
	case listenerWAN:
		p.Allow, p.Deny = networks(s.WANAllow), networks(s.WANDeny)
		p.ProxyFrom = networks(s.WANProxyProtocol)
	case listenerAlone:
		p.Allow, p.Deny = networks(s.Allow), networks(s.Deny)
		p.ProxyFrom = networks(s.ProxyProtocol)
	}
	return p
}

// checkOpenFiles returns an error if this process may not open the files for the limit of connections that was asked for.
func (s gatewaySettings) checkOpenFiles() error {
	if s.MaxConns == 0 {
		return nil // chosen by what is there
	}
	if err := gateway.CheckFiles(s.MaxConns); err != nil {
		return fmt.Errorf("max_conns %d: %w", s.MaxConns, err)
	}
	return nil
}

// sample is what the data plane is told of the access log.
func (s gatewaySettings) sample() int {
	if s.AccessLog == "" {
		return -1
	}
	return s.AccessLogSample
}

// duration reads a setting that checkLimits has seen.
func duration(s string) time.Duration {
	d, _ := time.ParseDuration(s)
	return d
}

// checkMixed returns an error if settings of one way to run a gateway are given for the other.
func (s gatewaySettings) checkMixed() error {
	var errs []error
	forbid := func(list []string, name, instead string) {
		if len(list) > 0 {
			errs = append(errs, fmt.Errorf("%s is for a gateway %s", name, instead))
		}
	}
	if s.alone() {
		forbid(s.LANAllow, "lan_allow", "of a datacenter: write allow")
		forbid(s.LANDeny, "lan_deny", "of a datacenter: write deny")
		forbid(s.WANAllow, "wan_allow", "of a datacenter: write allow")
		forbid(s.WANDeny, "wan_deny", "of a datacenter: write deny")
		forbid(s.LANProxyProtocol, "lan_proxy_protocol", "of a datacenter: write proxy_protocol")
		forbid(s.WANProxyProtocol, "wan_proxy_protocol", "of a datacenter: write proxy_protocol")
		if s.TellServers {
			forbid([]string{"true"}, "server_proxy_protocol", "of a datacenter: write proxy_protocol = true in the routes")
		}
	} else {
		forbid(s.Allow, "allow", "on a route file: write lan_allow or wan_allow")
		forbid(s.Deny, "deny", "on a route file: write lan_deny or wan_deny")
		forbid(s.ProxyProtocol, "proxy_protocol", "on a route file: write lan_proxy_protocol or wan_proxy_protocol")
	}
	return errors.Join(errs...)
}
