// SPDX-License-Identifier: MPL-2.0

package wanfed

import (
	"sync"
	"sync/atomic"
)

// Hop is one address through which a datacenter may be reached.
type Path struct {
	// Addr is host:port; the host is an IP address or a DNS name, resolved when it is dialed (at most every 5 s).
	Addr string
	// Via says what stands there, for logs and status: "own" gateway, "remote" gateway, or "configured" address.
	Via string
	// Own says that a gateway of the own datacenter stands there; see Mode.
	Local bool
	// Rank says how likely the hop is to work, as far as whoever wrote the book knows. Among hops that Mode does not tell
	// apart, one of a lower rank is tried first.
	Rank int
}

// Ranks.
const (
	RankHealthy  = 0 // nothing speaks against it
	RankCritical = 1 // its gateway is said to be down
	RankCached   = 2 // nobody names it any more; not probed while others work
)

// Routes is what a server believes about how to reach every server of the federation: an immutable value.
type AddressBook struct {
	// Servers has the address (host:port) of each server of the own datacenter, by node name.
	Servers map[string]string
	// Hops has the ways to each other datacenter, by its name. Their order counts where neither Mode, nor Rank, nor what
	// was measured tells them apart.
	Paths map[string][]Path
}

// Book holds the current Routes. One writer stores; dialers read. The zero value is an empty book.
type SharedAddressBook struct {
	routes atomic.Pointer[AddressBook]

	mu      sync.Mutex
	changed chan struct{} // closed and replaced by Store
}

var noRoutes = &AddressBook{}

// Load returns the current routes, never nil. The caller must not change them.
func (b *SharedAddressBook) Load() *AddressBook {
	if r := b.routes.Load(); r != nil {
		return r
	}
	return noRoutes
}

// Changed returns a channel that is closed at the next Store. Take it before Load, so that no change is missed.
func (b *SharedAddressBook) Changed() <-chan struct{} {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.changed == nil {
		b.changed = make(chan struct{})
	}
	return b.changed
}

// Store publishes r, which nobody changes from then on, and wakes those that wait for a change.
func (b *SharedAddressBook) Store(r *AddressBook) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.routes.Store(r)
	if b.changed != nil {
		close(b.changed)
		b.changed = nil
	}
}
