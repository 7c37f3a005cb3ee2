// SPDX-License-Identifier: MPL-2.0

package wanfed

import (
	"cmp"
	"maps"
	"slices"
	"sync/atomic"
	"time"
)

// dropReason is the reason for which a packet was not delivered.
type dropReason uint8

const (
	dropQueueFull    dropReason = iota // queue of the link full; the oldest was dropped
	dropWrite                          // connection failed during the write
	dropExpired                        // waited too long for a connection
	dropNoNode                         // no target, which Consul's protocol needs
	dropTooManyLinks                   // limit of links reached
	dropUnknownNode                    // received for a node that is not a server of this datacenter
	dropMisrouted                      // received from the local datacenter for another node
	dropNoPool                         // received for a pool that this server is not in now
	dropPoolFull                       // received faster than memberlist takes packets
	numDropReasons
)

var dropNames = [numDropReasons]string{
	dropQueueFull:    "queue_full",
	dropWrite:        "write",
	dropExpired:      "expired",
	dropNoNode:       "no_node",
	dropTooManyLinks: "too_many_links",
	dropUnknownNode:  "unknown_node",
	dropMisrouted:    "misrouted",
	dropNoPool:       "no_pool",
	dropPoolFull:     "pool_full",
}

// counters count packets of one pool to and from one datacenter.
type counters struct {
	sent, received, relayed atomic.Uint64
	dropped                 [numDropReasons]atomic.Uint64
}

func (c *counters) drop(why dropReason, n int) { c.dropped[why].Add(uint64(n)) }

type trafficKey struct {
	pool Pool
	dc   string
}

// maxTraffic bounds the datacenters that are counted separately, since their
// names come from peers.
const maxTraffic = 2048

// otherDC stands for all datacenters beyond maxTraffic. It is not a valid name.
const otherDC = "(other)"

// traffic returns the counters of (pool, dc).
func (t *Tunnel) traffic(pool Pool, dc string) *counters {
	k := trafficKey{pool, dc}
	t.mu.RLock()
	c := t.counts[k]
	t.mu.RUnlock()
	if c != nil {
		return c
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.trafficLocked(k)
}

func (t *Tunnel) trafficLocked(k trafficKey) *counters {
	c := t.counts[k]
	if c == nil && len(t.counts) >= maxTraffic {
		k.dc = otherDC
		c = t.counts[k]
	}
	if c == nil {
		c = &counters{}
		t.counts[k] = c
	}
	return c
}

// TunnelStats counts events since the start and describes the open connections.
type TunnelStats struct {
	Traffic  []Traffic         // sorted by pool and datacenter
	Links    []LinkStatus      // packet links from this server, sorted by datacenter and node
	Sessions []SessionStatus   // stream sessions from this server, sorted likewise
	Closed   map[string]uint64 // accepted connections and streams closed for a fault, by reason
}

// Traffic counts the packets of one pool to and from one datacenter.
type Traffic struct {
	Pool     Pool
	DC       string
	Sent     uint64            // written to a connection
	Received uint64            // passed to the pool
	Relayed  uint64            // received from DC and sent to another server of this datacenter
	Dropped  map[string]uint64 // to or from DC, by reason
}

// LinkStatus describes one packet link.
type LinkStatus struct {
	DC, Node       string        // Node is empty for the link to all servers of DC
	Path           Path          // last used
	Protocol       string        // last used
	ConnectedSince time.Time     // time of the first response; zero: not connected
	RTT            time.Duration // of the last echo; 0: none yet
	Queued         int           // packets
	LastError      string
	LastErrorAt    time.Time // zero: none
}

// SessionStatus describes one stream session.
type SessionStatus struct {
	DC, Node       string
	Path           Path
	ConnectedSince time.Time // zero: dialing
	Streams        int       // open now
}

// Stats may be called at any time.
func (t *Tunnel) Stats() TunnelStats {
	t.mu.RLock()
	s := TunnelStats{Closed: t.refusals.counts()}
	for k, c := range t.counts {
		s.Traffic = append(s.Traffic, c.read(k))
	}
	links := slices.Collect(maps.Values(t.links))
	sessions := slices.Collect(maps.Values(t.sessions))
	t.mu.RUnlock()
	for _, l := range links {
		s.Links = append(s.Links, l.snapshot())
	}
	for _, ss := range sessions {
		s.Sessions = append(s.Sessions, ss.status())
	}
	slices.SortFunc(s.Traffic, func(a, b Traffic) int {
		return cmp.Or(cmp.Compare(a.Pool, b.Pool), cmp.Compare(a.DC, b.DC))
	})
	slices.SortFunc(s.Links, func(a, b LinkStatus) int {
		return cmp.Or(cmp.Compare(a.DC, b.DC), cmp.Compare(a.Node, b.Node))
	})
	slices.SortFunc(s.Sessions, func(a, b SessionStatus) int {
		return cmp.Or(cmp.Compare(a.DC, b.DC), cmp.Compare(a.Node, b.Node))
	})
	return s
}

func (c *counters) read(k trafficKey) Traffic {
	tr := Traffic{
		Pool: k.pool, DC: k.dc, Sent: c.sent.Load(), Received: c.received.Load(), Relayed: c.relayed.Load(),
		Dropped: map[string]uint64{},
	}
	for i := range c.dropped {
		if n := c.dropped[i].Load(); n > 0 {
			tr.Dropped[dropNames[i]] = n
		}
	}
	return tr
}
