// SPDX-License-Identifier: MPL-2.0

package gateway

import (
	"net/netip"
	"slices"
	"sync"
	"sync/atomic"
)

// Policy says which clients a side takes. The zero Policy takes all.
type Policy struct {
	// Allow are the networks that may connect. Empty: all.
	Allow []netip.Prefix
	// Deny are networks that may not connect, even where Allow has them.
	Deny []netip.Prefix
	// MaxPerSource bounds the open connections of one source: of an IPv4 address, or of an IPv6 network of 64 bits, since
	// whoever has one address there has them all. 0: no bound. Negative is as 0.
	MaxPerSource int
	// ProxyFrom are the networks of balancers, whose connections must begin with a PROXY header of version 2. What it says is the
	// client's address, for all of the above and in logs; the balancer's own does not matter. Others must send none.
	ProxyFrom []netip.Prefix
}

// SetPolicy takes clients by p from now on. Open connections stay, and count.
func (s *Listener) SetPolicy(p Policy) {
	s.gate.policy.Store(&policy{allow: newNetworks(p.Allow), deny: newNetworks(p.Deny), perSource: p.MaxPerSource, proxies: newNetworks(p.ProxyFrom)})
}

// policy is a Policy made for lookups.
type policy struct {
	allow, deny networks
	perSource   int
	proxies     networks
}

// networks is a set of IP networks. A lookup costs a hash for each length of prefix in it, however many networks there are.
type networks struct {
	bits4, bits6 []int // lengths
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
			continue // no prefix at all
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

// gate lets connections in and counts them by their source. It takes in a little more than 0.1 us for each connection.
type gate struct {
	policy atomic.Pointer[policy] // nil: everything may come in

	mu   sync.Mutex
	open map[netip.Addr]int // by source
}

// sourceBits is how much of an IPv6 address says whose it is.
const sourceBits = 64

// sourceOf is what the connections of one client are counted by. addr is unmapped.
func sourceOf(addr netip.Addr) netip.Addr {
	if addr.Is6() {
		if p, err := addr.WithZone("").Prefix(sourceBits); err == nil {
			return p.Addr()
		}
	}
	return addr
}

// admit says whether a connection from addr may come in, or why not. One that may is counted until leave. A connection without
// an IP address (of a test, of a socket in the file system) comes in unless only some networks may, and is not counted.
func (s *Listener) admit(addr netip.Addr) (Reason, bool) {
	addr = addr.Unmap()
	p, limit := s.gate.policy.Load(), 0
	if p != nil {
		limit = p.perSource
		plain := addr.WithZone("")
		if len(p.allow.set) > 0 && !p.allow.contain(plain) || p.deny.contain(plain) {
			return ReasonDenied, false
		}
	}
	if !addr.IsValid() {
		return 0, true
	}
	source, g := sourceOf(addr), &s.gate
	g.mu.Lock()
	defer g.mu.Unlock()
	n := g.open[source]
	if limit > 0 && n >= limit {
		return ReasonSourceLimit, false
	}
	if g.open == nil {
		g.open = map[netip.Addr]int{}
	}
	g.open[source] = n + 1
	return 0, true
}

// sendsProxy says whether connections from addr must begin with a PROXY header.
func (s *Listener) sendsProxy(addr netip.Addr) bool {
	p := s.gate.policy.Load()
	return p != nil && len(p.proxies.set) > 0 && p.proxies.contain(addr.Unmap().WithZone(""))
}

// leave ends the count of a connection that admit let in. addr is the same.
func (s *Listener) leave(addr netip.Addr) {
	addr = addr.Unmap()
	if !addr.IsValid() {
		return
	}
	source, g := sourceOf(addr), &s.gate
	g.mu.Lock()
	defer g.mu.Unlock()
	if n := g.open[source]; n > 1 {
		g.open[source] = n - 1
	} else {
		delete(g.open, source)
	}
}

// sources is the number of sources that have connections open.
func (g *gate) sources() int {
	g.mu.Lock()
	defer g.mu.Unlock()
	return len(g.open)
}
