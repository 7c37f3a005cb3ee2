// SPDX-License-Identifier: MPL-2.0

package gossip

import (
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"time"

	"github.com/hashicorp/memberlist"
	"github.com/hashicorp/serf/serf"

	"github.com/wanfed/wanfed/internal/hclogs"
)

// create starts a serf that tells others the address adv. Its transport outlives it.
func (p *Pool) create(adv netip.AddrPort, events chan<- serf.Event) (body, error) {
	cfg := p.serfConfig(adv, events)
	s, err := serf.Create(cfg)
	if err != nil {
		return body{}, fmt.Errorf("start gossip pool of %s: %w", p.cfg.Name, err)
	}
	return body{s, cfg}, nil
}

func (p *Pool) serfConfig(adv netip.AddrPort, events chan<- serf.Event) *serf.Config {
	ml := memberlist.DefaultLANConfig()
	ml.TCPTimeout = 3 * time.Second
	if p.cfg.Kind == WAN {
		ml = memberlist.DefaultWANConfig()
		ml.TCPTimeout = 10 * time.Second
		// How much news a packet takes. memberlist's own value, 1400, is what fits a datagram: with it, the news of a start of 300
		// datacenters at once fills packets for four minutes, and each goes to another server, over another connection.
		// Not more: memberlist counts what travels with a ping in one byte, and 254 of the shortest news, of 20 bytes and their
		// length, must not fit; else the peer loses the ping.
		ml.UDPBufferSize = 5 << 10
		// A member is probed every 3 s, here with all that is tried by other ways within that time; memberlist's own value, 5 s, is for
		// datagrams, and a server takes five of these to get round to each of six. Not less often while probes fail: memberlist's
		// own value, up to eight times, is for the one server of many that is sick. Here a whole datacenter may be cut off.
		ml.ProbeInterval, ml.ProbeTimeout = 3*time.Second, 1500*time.Millisecond
		ml.AwarenessMaxMultiplier = 1
		// A suspected member has 21 s to 42 s, by how many suspect it, to say that it is alive; in a pool of more than ten, times
		// log10 of its size. A link on a dead path takes a second or two to find another one. memberlist's own values, 30 s to 180 s,
		// let half a federation that is cut off look alive for two minutes.
		ml.SuspicionMult = 7
		ml.SuspicionMaxTimeoutMult = 2
		// A start of a thousand is told in packets of dozens of news, which wait here while others are taken in.
		ml.HandoffQueueDepth = 4096
		// News goes to so many members by chance (times log10 of all). Twice memberlist's own value: of a datacenter that is cut off,
		// most copies go to where they cannot arrive, and its other servers are to hear it too.
		ml.RetransmitMult = 8
	}
	if p.cfg.Keyring != nil {
		ml.Keyring = p.cfg.Keyring.live
		ml.GossipVerifyIncoming, ml.GossipVerifyOutgoing = !p.cfg.AcceptPlaintext, !p.cfg.SendPlaintext
	}
	ml.Transport = lent{p.cfg.Transport, adv}
	// Nothing listens here: the transport brings what arrives. memberlist only looks at these to advertise.
	ml.BindAddr = adv.Addr().String()
	ml.BindPort = int(adv.Port())
	ml.AdvertiseAddr = ml.BindAddr
	ml.AdvertisePort = ml.BindPort
	ml.RequireNodeNames = p.cfg.Kind == WAN
	ml.DeadNodeReclaimTime = time.Millisecond // a dead member may come back elsewhere: names are in certificates
	// What they call Info is our Debug: membership changes are logged here, once.
	logger := slog.New(inTLS{hclogs.Demote(p.cfg.Logger.Handler())})
	ml.Logger = hclogs.Std(logger, "memberlist")
	gate := newAdmit(p, adv)
	ml.Merge, ml.Alive = gate, gate // serf leaves them alone as long as it has no merge delegate itself

	c := serf.DefaultConfig()
	c.Init()
	c.NodeName = p.cfg.Name
	c.Tags = p.currentTags()
	c.MemberlistConfig = ml
	c.Logger = hclogs.Std(logger, "serf")
	c.EventCh = events
	c.EnableNameConflictResolution = false // names are in certificates
	// How long Leave waits for all copies of the last farewell, and SetTags for those of the tags. All of them take 0.4 s in the LAN
	// pool of three or five; in the WAN pool a multiple of that, where one round of gossip has to do: others tell it on.
	c.BroadcastTimeout = time.Second
	if p.cfg.Kind == WAN {
		c.BroadcastTimeout = ml.GossipInterval + 50*time.Millisecond
	}
	c.LeavePropagateDelay = propagate
	// Announcements of joining. Members know it from other news anyway; and memberlist counts the news in a packet with one byte.
	c.MaxQueueDepth = 128
	c.QueueCheckInterval = time.Second
	c.ReconnectTimeout = 72 * time.Hour
	c.TombstoneTimeout = 72 * time.Hour
	return c
}

func addrOf(m serf.Member) string {
	return net.JoinHostPort(m.Addr.String(), fmt.Sprint(m.Port))
}
