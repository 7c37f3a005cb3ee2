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
	dropQueueFull    dropReason = iota // a full link queue dropped its oldest packet
	dropWrite                          // the connection failed during the write
	dropExpired                        // the packet waited too long for a connection
	dropNoNode                         // the packet names no node, which Consul's protocol needs
	dropTooManyLinks                   // the tunnel has maxLinks links
	dropUnknownNode                    // the target of a received packet is not a server of this datacenter
	dropMisrouted                      // a local server sent a packet for another server
	dropNoPool                         // this server is not in the pool of a received packet
	dropPoolFull                       // memberlist reads received packets too slowly
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

// counters counts packets of one pool to and from one datacenter.
type counters struct {
	lastReceived            atomic.Int64 // Unix time in nanoseconds; 0: never. See Tunnel.LastReceived
	sent, received, relayed atomic.Uint64
	dropped                 [numDropReasons]atomic.Uint64
}

func (c *counters) drop(reason dropReason, n int) { c.dropped[reason].Add(uint64(n)) }

type trafficKey struct {
	pool Pool
	dc   string
}

// maxTraffic bounds the number of counters, because the names of datacenters
// come from peers. Further datacenters share the counters of otherDC, which is
// not a valid name.
const (
	maxTraffic = 2048
	otherDC    = "(other)"
)

// traffic returns the counters of pool and dc.
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

// trafficLocked returns the counters of k. It creates them if necessary.
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

// LastReceived returns the time of the last packet or echo request on a
// connection from a server of dc to this server, accurate to one second. While dc
// borrows a connection to it (SPEC.md, section 2), bytes on that connection count too.
// LastReceived returns the zero time if there was none. Packets that another local server relayed do
// not count.
func (t *Tunnel) LastReceived(dc string) time.Time {
	t.mu.RLock()
	c := t.counts[trafficKey{PoolWAN, dc}]
	t.mu.RUnlock()
	if c == nil || c.lastReceived.Load() == 0 {
		return time.Time{}
	}
	return time.Unix(0, c.lastReceived.Load())
}

// TunnelStats counts events since NewTunnel and describes the connections from
// this server.
type TunnelStats struct {
	Traffic  []Traffic         // sorted by pool and datacenter
	Links    []LinkStatus      // sorted by datacenter and node
	Sessions []SessionStatus   // sorted by datacenter and node
	Closed   map[string]uint64 // accepted connections and streams closed for a fault, by reason
}

// Traffic counts the packets of one pool to and from one datacenter.
type Traffic struct {
	Pool     Pool
	DC       string
	Sent     uint64            // written to a connection
	Received uint64            // passed to the pool
	Relayed  uint64            // received from DC and queued for another server of this datacenter
	Dropped  map[string]uint64 // to or from DC, by reason
}

// LinkStatus describes one link, which carries packets.
type LinkStatus struct {
	DC, Node       string        // Node is empty for the link to all servers of DC
	Path           Path          // of the current or the last connection
	Protocol       string        // of the current or the last connection
	ConnectedSince time.Time     // first response on the connection; zero: not connected, or borrowing
	RTT            time.Duration // of the last echo; 0: none yet
	Queued         int           // packets in the queue
	// UnansweredSince is the time of the first echo request since the last echo
	// of the connection. Zero: the last request was answered, or the link is
	// not connected.
	UnansweredSince time.Time
	LastError       string
	LastErrorAt     time.Time // zero: no error yet
}

// SessionStatus describes one session, which carries streams.
type SessionStatus struct {
	DC, Node       string // Node is empty for the session to all servers of DC
	Path           Path
	ConnectedSince time.Time // zero: the session is being dialed
	Streams        int       // open streams
}

// Stats returns the current counts and connections. It may be called at any
// time.
func (t *Tunnel) Stats() TunnelStats {
	t.mu.RLock()
	s := TunnelStats{Closed: t.refusals.counts()}
	for k, c := range t.counts {
		s.Traffic = append(s.Traffic, c.read(k))
	}
	sessions := slices.Collect(maps.Values(t.sessions))
	t.mu.RUnlock()
	s.Links = t.Links()
	for _, session := range sessions {
		s.Sessions = append(s.Sessions, session.status())
	}
	slices.SortFunc(s.Traffic, func(a, b Traffic) int {
		return cmp.Or(cmp.Compare(a.Pool, b.Pool), cmp.Compare(a.DC, b.DC))
	})
	slices.SortFunc(s.Sessions, func(a, b SessionStatus) int {
		return cmp.Or(cmp.Compare(a.DC, b.DC), cmp.Compare(a.Node, b.Node))
	})
	return s
}

// Links returns the links to the named datacenters, or to all, sorted by datacenter
// and node. It may be called at any time.
func (t *Tunnel) Links(dcs ...string) []LinkStatus {
	t.mu.RLock()
	links := make([]*link, 0, len(t.links))
	for to, l := range t.links {
		if len(dcs) == 0 || slices.Contains(dcs, to.dc) {
			links = append(links, l)
		}
	}
	t.mu.RUnlock()
	out := make([]LinkStatus, len(links))
	for i, l := range links {
		out[i] = l.snapshot()
	}
	slices.SortFunc(out, func(a, b LinkStatus) int {
		return cmp.Or(cmp.Compare(a.DC, b.DC), cmp.Compare(a.Node, b.Node))
	})
	return out
}

// read returns the values of the counters of k.
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
