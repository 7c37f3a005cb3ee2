// SPDX-License-Identifier: MPL-2.0

package netaddr

import (
	"fmt"
	"net"
	"net/netip"
	"strings"
	"syscall"
)

// Class is a set of kinds of addresses that mean another machine in each network,
// or no single machine. Zero: none of them. The bits are part of messages.
type Class uint8

// The kinds.
const (
	Loopback  Class = 1 << iota
	LinkLocal       // unicast
	Other           // multicast or unspecified
)

// ClassOf returns the kind of ip, or 0.
func ClassOf(ip netip.Addr) Class {
	switch ip = ip.Unmap(); {
	case ip.IsLoopback():
		return Loopback
	case ip.IsLinkLocalUnicast():
		return LinkLocal
	case ip.IsMulticast() || ip.IsUnspecified():
		return Other
	}
	return 0
}

// HostClass returns the kind of a host:port. A DNS name has none, except localhost
// (RFC 6761, section 6.3).
func HostClass(hostport string) Class {
	host, _, _ := net.SplitHostPort(hostport)
	if ip, err := netip.ParseAddr(host); err == nil {
		return ClassOf(ip)
	}
	name := strings.ToLower(strings.TrimSuffix(host, "."))
	if name == "localhost" || strings.HasSuffix(name, ".localhost") {
		return Loopback
	}
	return 0
}

// IsName reports whether the host of a host:port is a DNS name.
func IsName(hostport string) bool {
	host, _, _ := net.SplitHostPort(hostport)
	_, err := netip.ParseAddr(host)
	return err != nil
}

// Control returns a function for net.Dialer.Control that refuses to connect to
// addresses of the kinds in refuse. It returns nil for 0.
func Control(refuse Class) func(network, address string, c syscall.RawConn) error {
	if refuse == 0 {
		return nil
	}
	return func(_, address string, _ syscall.RawConn) error {
		ip, err := netip.ParseAddrPort(address)
		if err == nil && ClassOf(ip.Addr())&refuse != 0 {
			err = RefusedError(ip.Addr())
		}
		return err
	}
}

// RefusedError returns the error of a name that resolves to addresses which are
// not dialed.
func RefusedError(addrs any) error {
	return fmt.Errorf("the name resolves to %v, which is not dialed for another datacenter: correct the name", addrs)
}
