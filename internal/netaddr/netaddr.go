// SPDX-License-Identifier: MPL-2.0

package netaddr

import (
	"fmt"
	"net"
	"net/netip"
	"net/url"
	"slices"
	"strconv"
	"strings"
)

// maxName is the maximum length of a DNS name without its final dot (RFC 1035,
// section 2.3.4).
const maxName = 253

// CheckHostPort returns an error unless addr is an address to dial:
// "192.0.2.1:8443", "[2001:db8::1]:8443" or "host.example:8443". The port is 1
// to 65535. The unspecified addresses 0.0.0.0 and [::] are errors.
func CheckHostPort(addr string) error {
	i := strings.LastIndexByte(addr, ':')
	if i < 0 {
		return fmt.Errorf("address %q has no port: write host:port", addr)
	}
	host, port := addr[:i], addr[i+1:]
	if n, err := strconv.ParseUint(port, 10, 16); err != nil || n == 0 {
		return fmt.Errorf("address %q: port %q is not a number from 1 to 65535", addr, port)
	}
	inner, bracketed := strings.CutPrefix(host, "[")
	if bracketed {
		inner, bracketed = strings.CutSuffix(inner, "]")
	}
	ip, err := netip.ParseAddr(inner)
	switch {
	case err == nil && ip.IsUnspecified():
		return fmt.Errorf("address %q cannot be dialed: write the IP address or DNS name of one machine", addr)
	case err == nil && ip.Is6() == bracketed:
		return nil
	case err == nil || strings.Contains(host, ":"):
		return fmt.Errorf("address %q: write IPv6 as [address]:port, and nothing else in brackets", addr)
	}
	if err := CheckDNSName(strings.ToLower(strings.TrimSuffix(host, "."))); err != nil {
		return fmt.Errorf("address %q: %w", addr, err)
	}
	return nil
}

// CheckDNSName returns an error unless name is a DNS name in lower case without
// a final dot. Labels may have underscores, as in the names of services.
func CheckDNSName(name string) error {
	if name == "" || len(name) > maxName {
		return fmt.Errorf("a name has 1 to %d characters", maxName)
	}
	for label := range strings.SplitSeq(name, ".") {
		if label == "" || len(label) > 63 || label[0] == '-' || label[len(label)-1] == '-' ||
			strings.IndexFunc(label, notInLabel) >= 0 {
			return fmt.Errorf("%q is not a DNS label: 1 to 63 of a-z, 0-9, \"-\" and \"_\", with no \"-\" at its ends",
				label)
		}
	}
	return nil
}

func notInLabel(r rune) bool {
	return (r < 'a' || r > 'z') && (r < '0' || r > '9') && r != '-' && r != '_'
}

// Overlap reports whether one machine cannot listen on both addresses
// (host:port). Two addresses overlap if their ports are equal, and the hosts
// are equal or one host is unspecified. Port 0 and host names other than
// localhost do not overlap with any address, because Overlap does not resolve
// names.
func Overlap(a, b string) bool {
	x, xPort, ok1 := listenAddr(a)
	y, yPort, ok2 := listenAddr(b)
	return ok1 && ok2 && xPort == yPort && xPort != 0 && (x == y || x.IsUnspecified() || y.IsUnspecified())
}

// listenAddr returns the IP address and port that net.Listen binds for addr.
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

// AllowedHost reports whether an HTTP request with this Host header is allowed:
// the host is an IP address, localhost, or one of names. Otherwise a web page
// whose name resolves to 127.0.0.1 could read an API through the browser of a
// visitor (DNS rebinding). The header may have a port. A request without the
// header (HTTP/1.0) is not from a browser.
func AllowedHost(hostport string, names []string) bool {
	if hostport == "" {
		return true
	}
	host, _, err := net.SplitHostPort(hostport)
	if err != nil {
		host = strings.TrimSuffix(strings.TrimPrefix(hostport, "["), "]")
	}
	if addr, err := netip.ParseAddr(host); err == nil {
		return addr.Zone() == "" // a zone may be any text, and clients do not send zones
	}
	host = strings.TrimSuffix(host, ".")
	return strings.EqualFold(host, "localhost") || slices.ContainsFunc(names, func(name string) bool {
		return strings.EqualFold(strings.TrimSuffix(name, "."), host)
	})
}

// ParseHTTP returns the host:port of an address of an HTTP listener, and whether
// it uses TLS. s is host:port, http://host:port or https://host:port, and the
// value of the setting name.
func ParseHTTP(name, s string) (addr string, useTLS bool, err error) {
	scheme, addr := "http", s
	if strings.Contains(s, "://") {
		u, err := url.Parse(s)
		if err != nil || (u.Path != "" && u.Path != "/") || u.RawQuery != "" || u.User != nil {
			return "", false, fmt.Errorf("%s %q is not host:port, http://host:port or https://host:port", name, s)
		}
		scheme, addr = u.Scheme, u.Host
	}
	_, port, err := net.SplitHostPort(addr)
	if err != nil {
		return "", false, fmt.Errorf("%s %q has no port", name, s)
	}
	if _, err := strconv.ParseUint(port, 10, 16); err != nil {
		return "", false, fmt.Errorf("%s %q: port is not a number up to 65535", name, s)
	}
	if scheme != "http" && scheme != "https" {
		return "", false, fmt.Errorf("%s %q: scheme is neither http nor https", name, s)
	}
	return addr, scheme == "https", nil
}
