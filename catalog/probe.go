// SPDX-License-Identifier: MPL-2.0

package catalog

import (
	"cmp"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"net/url"
	"slices"
	"strings"
	"time"

	"github.com/wanfed/wanfed/api/pb"
	"github.com/wanfed/wanfed/internal/netaddr"
)

// Types of checks that servers run.
const (
	TypeHTTP = "http"
	TypeTCP  = "tcp"
	TypeGRPC = "grpc"
)

const (
	// MinProbeInterval is the minimum time between two requests of one check.
	MinProbeInterval = time.Second
	// MaxProbeInterval is the maximum time between two requests of one check.
	MaxProbeInterval = 24 * time.Hour
	// DefaultProbeTimeout is the time of a request if Probe.timeout is 0.
	DefaultProbeTimeout = 10 * time.Second
	// MaxProbeTimeout is the maximum time of a request.
	MaxProbeTimeout = time.Minute

	maxTarget      = 2048 // of a URL or an address, in bytes
	maxHeaders     = 16   // fields
	maxHeaderBytes = 2048 // of all fields
	maxThreshold   = 1000 // equal results in a row
)

// secretHeaders are fields that usually have a secret. Everybody who may read
// the catalog could read it.
var secretHeaders = []string{"Authorization", "Proxy-Authorization", "Cookie", "X-Consul-Token", "X-Vault-Token"}

// ProbeType returns TypeHTTP, TypeTCP or TypeGRPC, or "" for an empty probe.
func ProbeType(p *pb.Probe) string {
	switch {
	case p.GetHttp() != "":
		return TypeHTTP
	case p.GetTcp() != "":
		return TypeTCP
	case p.GetGrpc() != "":
		return TypeGRPC
	}
	return ""
}

// ProbeTarget returns the host and the port to which a probe connects. It does
// not resolve the host.
func ProbeTarget(p *pb.Probe) (host, port string, err error) {
	target := p.GetTcp()
	switch ProbeType(p) {
	case TypeHTTP:
		u, err := url.Parse(p.GetHttp())
		switch {
		case err != nil || u.Scheme != "http" && u.Scheme != "https" || u.Hostname() == "":
			return "", "", fmt.Errorf("URL %.300q: must be http://HOST/PATH or https://HOST/PATH", p.GetHttp())
		case u.User != nil:
			return "", "", errors.New("the URL has a user or a password, which the catalog would show: leave it out")
		}
		port := "80"
		if u.Scheme == "https" {
			port = "443"
		}
		target = net.JoinHostPort(u.Hostname(), cmp.Or(u.Port(), port))
	case TypeGRPC:
		target, _, _ = strings.Cut(p.GetGrpc(), "/")
	}
	if host, port, err = net.SplitHostPort(target); err != nil {
		return "", "", fmt.Errorf("address %.300q: must be HOST:PORT", target)
	}
	return host, port, netaddr.CheckHostPort(net.JoinHostPort(host, port))
}

// checkProbe checks the fields of a probe. The server that runs the probe checks
// the addresses of its host: see CheckProbeAddress.
func checkProbe(p *pb.Probe) error {
	if p == nil {
		return nil
	}
	n := 0
	for _, s := range []string{p.Http, p.Tcp, p.Grpc} {
		if s != "" {
			n++
		}
		if len(s) > maxTarget {
			return fmt.Errorf("probe has a target of %d bytes: more than %d", len(s), maxTarget)
		}
	}
	if n != 1 {
		return errors.New("probe: exactly one of http, tcp and grpc must be set")
	}
	if _, _, err := ProbeTarget(p); err != nil {
		return fmt.Errorf("probe: %w", err)
	}
	interval, timeout := p.GetInterval().AsDuration(), p.GetTimeout().AsDuration()
	switch {
	case interval < MinProbeInterval || interval > MaxProbeInterval:
		return fmt.Errorf("probe: interval %v: must be %v to %v", interval, MinProbeInterval, MaxProbeInterval)
	case timeout < 0 || timeout > MaxProbeTimeout:
		return fmt.Errorf("probe: timeout %v: must be at most %v", timeout, MaxProbeTimeout)
	case max(p.SuccessBeforePassing, p.FailuresBeforeWarning, p.FailuresBeforeCritical) > maxThreshold:
		return fmt.Errorf("probe: the number of results before a status is above %d", maxThreshold)
	case p.FailuresBeforeWarning > p.FailuresBeforeCritical:
		return errors.New("probe: failures_before_warning is above failures_before_critical")
	case len(p.TlsServerName) > maxName:
		return fmt.Errorf("probe: tls_server_name has more than %d bytes", maxName)
	}
	if ProbeType(p) != TypeHTTP && (p.Method != "" || len(p.Header) > 0) {
		return errors.New("probe: only http has a method and a header")
	}
	return checkProbeRequest(p)
}

// checkProbeRequest checks what is sent. A request must not change anything, and
// its header is readable by all who may read the catalog.
func checkProbeRequest(p *pb.Probe) error {
	if !slices.Contains([]string{"", "GET", "HEAD"}, p.Method) {
		return fmt.Errorf("probe: method %.30q: must be GET or HEAD", p.Method)
	}
	size := 0
	for name, h := range p.Header {
		if slices.ContainsFunc(secretHeaders, func(s string) bool { return strings.EqualFold(s, name) }) {
			return fmt.Errorf("probe: header %s would be readable in the catalog: check a URL that needs no secret", name)
		}
		for _, value := range append(h.GetValues(), name) {
			size += len(value)
			if strings.ContainsFunc(value, func(r rune) bool { return r < ' ' || r == 0x7f }) {
				return fmt.Errorf("probe: header %.100q has a control character", name)
			}
		}
		if name == "" || strings.ContainsFunc(name, func(r rune) bool { return r <= ' ' || r > '~' || r == ':' }) {
			return fmt.Errorf("probe: header %.100q: not the name of a header", name)
		}
	}
	if len(p.Header) > maxHeaders || size > maxHeaderBytes {
		return fmt.Errorf("probe: the header has more than %d fields or %d bytes", maxHeaders, maxHeaderBytes)
	}
	return nil
}

// ProbesLoopback reports whether the target of a probe is written as a loopback
// address or as localhost.
func ProbesLoopback(p *pb.Probe) bool {
	host, _, err := ProbeTarget(p)
	if err != nil {
		return false
	}
	host = strings.ToLower(strings.TrimSuffix(host, "."))
	ip, err := netip.ParseAddr(host)
	return err == nil && embedded(ip).IsLoopback() || host == "localhost" || strings.HasSuffix(host, ".localhost")
}

// metadataAddrs are addresses outside of the link-local ranges at which clouds
// serve credentials to their machines.
var metadataAddrs = []netip.Addr{
	netip.MustParseAddr("100.100.100.200"), netip.MustParseAddr("168.63.129.16"), netip.MustParseAddr("192.0.0.192"),
	netip.MustParseAddr("fd00:ec2::254"), netip.MustParseAddr("fd20:ce::254"),
}

var (
	nat64   = netip.MustParsePrefix("64:ff9b::/96")
	sixToV4 = netip.MustParsePrefix("2002::/16")
	thisNet = netip.MustParsePrefix("0.0.0.0/8")
)

// embedded returns the IPv4 address in an IPv6 address that stands for it, or ip
// without its zone.
func embedded(ip netip.Addr) netip.Addr {
	ip = ip.Unmap().WithZone("")
	b := ip.As16()
	switch {
	case nat64.Contains(ip):
		return netip.AddrFrom4([4]byte(b[12:]))
	case sixToV4.Contains(ip):
		return netip.AddrFrom4([4]byte(b[2:6]))
	}
	return ip
}

// CheckProbeAddress returns the reason why a server with an address must not
// connect to ip for a check, or nil. A link-local address, and one at which a
// cloud serves credentials, is refused unless it is that of the server. loopback
// permits loopback addresses: the target of the probe is one, as opposed to a
// name that resolves to one.
func CheckProbeAddress(ip, server netip.Addr, loopback bool) error {
	ip = embedded(ip)
	switch {
	case ip == server.Unmap().WithZone(""):
		return nil
	case !ip.IsValid() || ip.IsUnspecified() || thisNet.Contains(ip) || ip.IsMulticast() ||
		ip == netip.AddrFrom4([4]byte{255, 255, 255, 255}):
		return fmt.Errorf("%v is not the address of a machine", ip)
	case ip.IsLoopback() && !loopback:
		return fmt.Errorf("the name resolves to %v: a loopback address must be written in the check", ip)
	case ip.IsLinkLocalUnicast(), slices.Contains(metadataAddrs, ip):
		return fmt.Errorf("%v may belong to the metadata service of a cloud: servers do not connect to it", ip)
	}
	return nil
}
