// SPDX-License-Identifier: MPL-2.0

package gateway

import (
	"net/netip"
	"slices"
	"time"
)

// Policy selects the clients that a listener accepts. The zero Policy accepts
// all.
type Policy struct {
	// Allow are the networks that may connect. Empty: all.
	Allow []netip.Prefix
	// Deny are networks that may not connect, even if Allow contains them.
	Deny []netip.Prefix
	// MaxPerSource bounds the open connections of one source. A source is one
	// IPv4 address or one IPv6 /64 network, because a host in such a network
	// can use all its addresses. 0 or negative: no limit.
	MaxPerSource int
	// MaxRatePerSource bounds the new connections of one source per second. A
	// source that was idle may open ten times as many at once. 0 or negative: no
	// limit.
	MaxRatePerSource int
	// ProxyFrom are the networks of load balancers. Their connections must
	// begin with a PROXY header, version 2. The source address in the header is
	// the address of the client for Allow, Deny, the limits per source and
	// logs. Clients from other networks must not send a header.
	ProxyFrom []netip.Prefix
}

// SetPolicy replaces the policy. Open connections stay, and count towards
// MaxPerSource.
func (l *Listener) SetPolicy(p Policy) {
	l.mu.Lock()
	l.rates.set(p.MaxRatePerSource)
	l.mu.Unlock()
	l.rules.Store(&rules{
		allow: newNetworks(p.Allow), deny: newNetworks(p.Deny),
		proxyFrom: newNetworks(p.ProxyFrom), maxPerSource: p.MaxPerSource,
	})
}

// rules are a Policy prepared for lookups.
type rules struct {
	allow, deny, proxyFrom networks
	maxPerSource           int
}

// networks is a set of IP networks. A lookup costs one hash per prefix length,
// regardless of the number of networks.
type networks struct {
	lengths []int // prefix lengths in bits, of IPv4 and IPv6
	set     map[netip.Prefix]struct{}
}

func newNetworks(list []netip.Prefix) networks {
	n := networks{set: make(map[netip.Prefix]struct{}, len(list))}
	for _, p := range list {
		bits := p.Bits()
		if p.Addr().Is4In6() && bits >= 96 {
			bits -= 96
		}
		p, err := p.Addr().Unmap().Prefix(bits)
		if err != nil {
			continue // not a prefix
		}
		if !slices.Contains(n.lengths, bits) {
			n.lengths = append(n.lengths, bits)
		}
		n.set[p] = struct{}{}
	}
	return n
}

func (n *networks) contain(addr netip.Addr) bool {
	return slices.ContainsFunc(n.lengths, func(bits int) bool {
		p, err := addr.Prefix(bits) // fails for IPv4 if bits exceeds 32
		_, ok := n.set[p]
		return ok && err == nil
	})
}

// sourceOf returns the address that stands for the source of addr, an IPv4
// address or an IPv6 address.
func sourceOf(addr netip.Addr) netip.Addr {
	if addr = addr.Unmap(); addr.Is4() {
		return addr
	}
	p, _ := addr.WithZone("").Prefix(64)
	return p.Addr()
}

// admit reports whether a connection from addr is accepted, or returns the
// reason for the refusal. An accepted connection counts until release. A
// connection without an IP address, such as a Unix socket, is accepted unless
// Allow has networks. Such a connection does not count.
func (l *Listener) admit(addr netip.Addr, now time.Time) (Reason, bool) {
	r, limit := l.rules.Load(), 0
	if r != nil {
		limit = r.maxPerSource
		plain := addr.Unmap().WithZone("")
		if len(r.allow.set) > 0 && !r.allow.contain(plain) || r.deny.contain(plain) {
			return ReasonDenied, false
		}
	}
	if !addr.IsValid() {
		return 0, true
	}
	source := sourceOf(addr)
	l.mu.Lock()
	defer l.mu.Unlock()
	if !l.rates.allow(source, now) {
		return ReasonSourceRate, false
	}
	if limit > 0 && l.sources[source] >= limit {
		return ReasonSourceLimit, false
	}
	l.sources[source]++
	return 0, true
}

// expectsProxyHeader reports whether connections from addr must begin with a
// PROXY header.
func (l *Listener) expectsProxyHeader(addr netip.Addr) bool {
	r := l.rules.Load()
	return r != nil && len(r.proxyFrom.set) > 0 && r.proxyFrom.contain(addr.Unmap().WithZone(""))
}

// release ends the count of a connection that admit accepted from addr.
func (l *Listener) release(addr netip.Addr) {
	if !addr.IsValid() {
		return
	}
	source := sourceOf(addr)
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.sources[source]--; l.sources[source] <= 0 {
		delete(l.sources, source)
	}
}
