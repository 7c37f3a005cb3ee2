// SPDX-License-Identifier: MPL-2.0

package gossip

import (
	"context"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"strings"
	"time"

	"github.com/hashicorp/memberlist"
	"github.com/hashicorp/serf/serf"

	"github.com/wanfed/wanfed/internal/slogadapter"
	"github.com/wanfed/wanfed/wanfed"
)

// instance is one serf of a pool, with the configuration that serf reads while
// it runs.
type instance struct {
	*serf.Serf
	cfg *serf.Config
}

// create starts a serf that advertises adv. The transport outlives it.
func (p *Pool) create(adv netip.AddrPort, events chan<- serf.Event) (instance, error) {
	cfg := p.serfConfig(adv, events)
	s, err := serf.Create(cfg)
	if err != nil {
		return instance{}, fmt.Errorf("start gossip pool of %s: %w", p.cfg.Name, err)
	}
	return instance{s, cfg}, nil
}

func (p *Pool) serfConfig(adv netip.AddrPort, events chan<- serf.Event) *serf.Config {
	ml := p.memberlistConfig(adv)
	c := serf.DefaultConfig()
	c.Init()
	c.NodeName = p.cfg.Name
	c.Tags = p.currentTags()
	c.MemberlistConfig = ml
	c.Logger = slogadapter.Std(p.libraryLogger(), "serf")
	c.EventCh = events
	c.EnableNameConflictResolution = false // certificates contain the names
	// BroadcastTimeout limits the time for which Leave and SetTags wait until
	// all copies of their message are sent. A LAN pool of three or five members
	// needs 0.4 s. The WAN pool needs a multiple of that time. There, the
	// timeout covers one gossip round, and other members forward the message.
	c.BroadcastTimeout = time.Second
	if p.cfg.Kind == wanfed.PoolWAN {
		c.BroadcastTimeout = ml.GossipInterval + 50*time.Millisecond
	}
	c.LeavePropagateDelay = leavePropagateDelay
	// The queue holds announcements of joins. Members also receive joins in
	// other messages. memberlist counts the messages of a packet in one byte.
	c.MaxQueueDepth = 128
	c.QueueCheckInterval = time.Second
	c.ReconnectTimeout = 72 * time.Hour
	c.TombstoneTimeout = 72 * time.Hour
	return c
}

func (p *Pool) memberlistConfig(adv netip.AddrPort) *memberlist.Config {
	ml := memberlist.DefaultLANConfig()
	ml.TCPTimeout = 3 * time.Second
	if p.cfg.Kind == wanfed.PoolWAN {
		ml = memberlist.DefaultWANConfig()
		setWANTimings(ml)
	}
	if p.cfg.Keyring != nil {
		ml.Keyring = p.cfg.Keyring.live
		ml.GossipVerifyIncoming, ml.GossipVerifyOutgoing = !p.cfg.AcceptPlaintext, !p.cfg.SendPlaintext
	}
	ml.Transport = sharedTransport{p.cfg.Transport, adv}
	// Nothing listens on these addresses: the transport delivers all traffic.
	// memberlist uses them only to advertise.
	ml.BindAddr = adv.Addr().String()
	ml.BindPort = int(adv.Port())
	ml.AdvertiseAddr = ml.BindAddr
	ml.AdvertisePort = ml.BindPort
	ml.RequireNodeNames = p.cfg.Kind == wanfed.PoolWAN
	// A dead member may return at another address: certificates contain names.
	ml.DeadNodeReclaimTime = time.Millisecond
	ml.Logger = slogadapter.Std(p.libraryLogger(), "memberlist")
	// Serf does not replace these delegates as long as it has no merge delegate
	// of its own.
	admission := newAdmission(p, adv)
	ml.Merge, ml.Alive = admission, admission
	return ml
}

// setWANTimings changes memberlist's defaults, which are meant for datagrams, to
// values for links between datacenters.
func setWANTimings(ml *memberlist.Config) {
	ml.TCPTimeout = 10 * time.Second
	// UDPBufferSize limits the messages of a packet. The default, 1400, fits a
	// datagram. With it, the messages of 300 datacenters that start together
	// fill packets for four minutes, each over another connection. The value
	// must not be larger: memberlist counts the messages that travel with a ping
	// in one byte, so 254 of the shortest messages (20 bytes and their length)
	// must not fit. Otherwise the peer drops the ping.
	ml.UDPBufferSize = 5 << 10
	// A member is probed every 3 s, including the indirect probes. The default
	// of 5 s needs five intervals for six members. The interval does not grow
	// while probes fail (the default multiplies it by up to eight): that is
	// meant for a single sick server, but here a whole datacenter may be cut off.
	ml.ProbeInterval, ml.ProbeTimeout = 3*time.Second, 1500*time.Millisecond
	ml.AwarenessMaxMultiplier = 1
	// A suspected member has 21 s to 42 s to refute, depending on how many
	// members suspect it. In a pool of more than ten members, both times are
	// multiplied by log10 of its size. A link on a dead path finds another path
	// within two seconds. With the defaults, 30 s to 180 s, a partitioned half
	// of a federation looks alive for two minutes.
	ml.SuspicionMult = 7
	ml.SuspicionMaxTimeoutMult = 2
	// When a thousand members start, packets with dozens of messages queue here.
	ml.HandoffQueueDepth = 4096
	// A message is sent to RetransmitMult random members, times log10 of the
	// number of members. The value is twice the default. Most copies that a
	// partitioned datacenter sends cannot arrive, but its other servers must
	// also receive the message.
	ml.RetransmitMult = 8
}

// libraryLogger returns the logger for serf and memberlist. Their Info becomes
// Debug: this package logs each membership change once.
func (p *Pool) libraryLogger() *slog.Logger {
	return slog.New(logFilter{slogadapter.Demote(p.cfg.Logger.Handler())})
}

// logFilter drops or demotes messages of the libraries that report no fault
// here: the transport uses TLS, a leaving server does not wait for all copies of
// its leave message, and memberlist may send after the transport has stopped.
// It matches text because the libraries log plain lines without an error value.
type logFilter struct{ slog.Handler }

func (h logFilter) Handle(ctx context.Context, r slog.Record) error {
	if strings.Contains(r.Message, "Binding to public address without encryption") ||
		strings.Contains(r.Message, "timeout waiting for leave broadcast") {
		return nil
	}
	if strings.HasSuffix(r.Message, net.ErrClosed.Error()) {
		if r.Level = slog.LevelDebug; !h.Enabled(ctx, r.Level) {
			return nil
		}
	}
	return h.Handler.Handle(ctx, r)
}

func (h logFilter) WithAttrs(attrs []slog.Attr) slog.Handler {
	return logFilter{h.Handler.WithAttrs(attrs)}
}

func (h logFilter) WithGroup(name string) slog.Handler { return logFilter{h.Handler.WithGroup(name)} }

// sharedTransport is the pool's transport for one serf instance. Shutdown does
// not stop the transport, and each instance has its own address.
type sharedTransport struct {
	memberlist.NodeAwareTransport
	adv netip.AddrPort
}

func (t sharedTransport) FinalAdvertiseAddr(string, int) (net.IP, int, error) {
	return t.adv.Addr().AsSlice(), int(t.adv.Port()), nil
}

func (sharedTransport) Shutdown() error { return nil }
