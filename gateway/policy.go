// SPDX-License-Identifier: MPL-2.0

package gateway

import (
	"net/netip"
	"slices"
	"sync"
	"sync/atomic"
)

// Policy selects the clients that a listener accepts. The zero Policy accepts
// all.
type Policy struct {
	// Allow are the networks that may connect. Empty: all.
	Allow []netip.Prefix
	// Deny are networks that may not connect, even if Allow contains them.
	Deny []netip.Prefix
	// MaxPerSource bounds the open connections of one source: one IPv4 address,
	// or one IPv6 network of 64 bits, since a host in it can use all addresses.
	// 0 or negative: no limit.
	MaxPerSource int
	// ProxyFrom are the networks of load balancers. Their connections must
	// begin with a PROXY header, version 2. The source address in the header is
	// the address of the client for the fields above and in logs. Other clients
	// must not send a header.
	ProxyFrom []netip.Prefix
}

// SetPolicy replaces the policy. Open connections stay, and count towards
// MaxPerSource.
func (l *Listener) SetPolicy(p Policy) {
	l.admission.rules.Store(&rules{
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
	bits4, bits6 []int // prefix lengths
	set          map[netip.Prefix]struct{}
}

func newNetworks(list []netip.Prefix) networks {
	n := networks{set: make(map[netip.Prefix]struct{}, len(list))}
	for _, p := range list {
		bits, lengths := p.Bits(), &n.bits6
		if p.Addr().Is4In6() && bits >= 96 {
			bits -= 96
		}
		addr := p.Addr().Unmap()
		if addr.Is4() {
			lengths = &n.bits4
		}
		p, err := addr.Prefix(bits)
		if err != nil {
			continue // not a prefix
		}
		if !slices.Contains(*lengths, bits) {
			*lengths = append(*lengths, bits)
		}
		n.set[p] = struct{}{}
	}
	return n
}

func (n *networks) contain(addr netip.Addr) bool {
	lengths := n.bits6
	if addr.Is4() {
		lengths = n.bits4
	}
	for _, bits := range lengths {
		p, err := addr.Prefix(bits)
		if _, ok := n.set[p]; ok && err == nil {
			return true
		}
	}
	return false
}

// admission applies the rules and counts connections by source.
type admission struct {
	rules atomic.Pointer[rules] // nil: all clients are accepted

	mu   sync.Mutex
	open map[netip.Addr]int // by source
}

// sourceBits is the length of the IPv6 prefix that is one source.
const sourceBits = 64

// sourceOf returns the source of an unmapped address.
func sourceOf(addr netip.Addr) netip.Addr {
	if addr.Is6() {
		if p, err := addr.WithZone("").Prefix(sourceBits); err == nil {
			return p.Addr()
		}
	}
	return addr
}

// admit reports whether a connection from addr is accepted, or returns the
// reason for the refusal. An accepted connection counts until release. A
// connection without an IP address, such as a Unix socket, is accepted unless
// Allow has networks. It does not count.
func (l *Listener) admit(addr netip.Addr) (Reason, bool) {
	addr = addr.Unmap()
	r, limit := l.admission.rules.Load(), 0
	if r != nil {
		limit = r.maxPerSource
		plain := addr.WithZone("")
		if len(r.allow.set) > 0 && !r.allow.contain(plain) || r.deny.contain(plain) {
			return ReasonDenied, false
		}
	}
	if !addr.IsValid() {
		return 0, true
	}
	source, a := sourceOf(addr), &l.admission
	a.mu.Lock()
	defer a.mu.Unlock()
	n := a.open[source]
	if limit > 0 && n >= limit {
		return ReasonSourceLimit, false
	}
	if a.open == nil {
		a.open = map[netip.Addr]int{}
	}
	a.open[source] = n + 1
	return 0, true
}

// expectsProxyHeader reports whether connections from addr must begin with a
// PROXY header.
func (l *Listener) expectsProxyHeader(addr netip.Addr) bool {
	r := l.admission.rules.Load()
	return r != nil && len(r.proxyFrom.set) > 0 && r.proxyFrom.contain(addr.Unmap().WithZone(""))
}

// release ends the count of a connection that admit accepted from addr.
func (l *Listener) release(addr netip.Addr) {
	addr = addr.Unmap()
	if !addr.IsValid() {
		return
	}
	source, a := sourceOf(addr), &l.admission
	a.mu.Lock()
	defer a.mu.Unlock()
	if n := a.open[source]; n > 1 {
		a.open[source] = n - 1
	} else {
		delete(a.open, source)
	}
}

// sources returns the number of sources that have open connections.
func (a *admission) sources() int {
	a.mu.Lock()
	defer a.mu.Unlock()
	return len(a.open)
}
