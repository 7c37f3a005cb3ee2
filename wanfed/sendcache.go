// SPDX-License-Identifier: MPL-2.0

package wanfed

import (
	"hash/maphash"
	"sync/atomic"
	"time"
)

// sendCache remembers over which link a Transport's packets for a name went last, so that sending one takes one look-up and
// no lock but the link's. It may be out of date: a link that has retired says so, and when the protocol of any datacenter
// changes, all is forgotten. Names that share a place forget each other.
type sendCache struct {
	seed  maphash.Seed
	known [512]atomic.Pointer[sendRoute] // by hash of the name
}

// sendRoute is never changed.
type sendRoute struct {
	name, node string
	l          *link
	changes    uint64 // Tunnel.protocols before l was looked up
}

func (c *sendCache) place(name string) *atomic.Pointer[sendRoute] {
	return &c.known[maphash.String(c.seed, name)%uint64(len(c.known))]
}

// push sends by the link known for name; false means that none is, or that it has retired.
func (c *sendCache) push(t *Tunnel, pool Pool, name, addr string, packet []byte, now time.Time) bool {
	r := c.place(name).Load()
	return r != nil && r.name == name && r.changes == t.protocols.Load() && r.l.push(pool, r.node, addr, packet, now)
}
