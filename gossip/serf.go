// SPDX-License-Identifier: MPL-2.0

package gossip

import (
	"fmt"
	"log/slog"
	"net"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/hashicorp/memberlist"
	"github.com/hashicorp/serf/serf"

	"github.com/wanfed/wanfed/internal/ratelog"
	"github.com/wanfed/wanfed/internal/slogadapter"
	"github.com/wanfed/wanfed/wanfed"
)

// instance is one serf instance of a pool with its configuration. A pool that
// is disabled and enabled again has several, one after the other.
type instance struct {
	*serf.Serf
	cfg *serf.Config // serf reads it while it runs
}

// create starts a serf instance. The end of the instance does not stop the
// transport.
func (p *Pool) create(events chan<- serf.Event) (instance, error) {
	filtered := make(chan struct{})
	defer close(filtered)
	cfg := p.serfConfig(events, filtered)
	s, err := serf.Create(cfg)
	if err != nil {
		return instance{}, fmt.Errorf("start gossip pool of %s: %w", p.cfg.Name, err)
	}
	// memberlist has no other member, and therefore does not use the delegate,
	// until it receives a packet or stream.
	cfg.MemberlistConfig.Delegate = p.newFilter(s, cfg.MemberlistConfig.Delegate)
	return instance{s, cfg}, nil
}

func (p *Pool) serfConfig(events chan<- serf.Event, filtered <-chan struct{}) *serf.Config {
	ml := p.memberlistConfig(filtered)
	c := serf.DefaultConfig()
	c.Init()
	c.NodeName = p.cfg.Name
	c.Tags = p.currentTags()
	c.MemberlistConfig = ml
	c.Logger = slogadapter.Std(p.libraryLogger(), "serf")
	c.EventCh = events
	c.EnableNameConflictResolution = false // certificates contain the names
	// BroadcastTimeout limits the time that Leave and SetTags wait until all
	// copies of their message are sent. A LAN pool of three or five members
	// needs 0.4 s. The WAN pool needs a multiple of that time. Its timeout
	// covers one gossip round, after which other members forward the message.
	c.BroadcastTimeout = time.Second
	if p.cfg.Kind == wanfed.PoolWAN {
		c.BroadcastTimeout = ml.GossipInterval + 50*time.Millisecond
	}
	c.LeavePropagateDelay = leavePropagateDelay
	// MaxQueueDepth limits the queued join messages. A dropped message does no
	// harm, because members also learn of joins by other messages. The limit is
	// enforced in each QueueCheckInterval, by three timers of each pool.
	c.MaxQueueDepth = 128
	c.QueueCheckInterval = 5 * time.Second
	c.RecentIntentTimeout = intentTimeout
	c.EventBuffer, c.QueryBuffer = 1, 1 // filter drops events and queries; serf requires a buffer
	c.ReconnectTimeout = 72 * time.Hour
	c.TombstoneTimeout = 72 * time.Hour
	if p.cfg.Reap != nil {
		c.ReconnectTimeoutOverride = reaper(p.cfg.Reap)
	}
	return c
}

// reaper is a Config.Reap. serf calls it for failed members and for those that
// left.
type reaper func(name string) bool

// ReconnectTimeout implements serf.ReconnectTimeoutOverrider.
func (r reaper) ReconnectTimeout(m *serf.Member, timeout time.Duration) time.Duration {
	if r(m.Name) {
		return 0
	}
	return timeout
}

func (p *Pool) memberlistConfig(filtered <-chan struct{}) *memberlist.Config {
	ml := memberlist.DefaultLANConfig()
	ml.TCPTimeout = 3 * time.Second
	if p.cfg.Kind == wanfed.PoolWAN {
		ml = memberlist.DefaultWANConfig()
		setWANTimings(ml)
		// TLS connections carry the packets too, so a stream reaches no more members.
		// With many members, each late ping would open a session for one over a stream.
		ml.DisableTcpPingsForNode = func(string) bool { return len(p.Members()) > manyMembers }
	}
	if p.cfg.Keyring != nil {
		ml.Keyring = p.cfg.Keyring.live
		ml.GossipVerifyIncoming, ml.GossipVerifyOutgoing = !p.cfg.AcceptPlaintext, !p.cfg.SendPlaintext
	}
	ml.EnableCompression = false // TLS connections carry all gossip; the cost is higher than the gain
	ml.Transport = sharedTransport{p.inspector, filtered}
	// memberlist only advertises these addresses. It does not listen on them.
	ml.BindAddr, ml.BindPort = p.cfg.Advertise.Addr().String(), int(p.cfg.Advertise.Port())
	ml.AdvertiseAddr, ml.AdvertisePort = ml.BindAddr, ml.BindPort
	ml.RequireNodeNames = p.cfg.Kind == wanfed.PoolWAN
	// A dead member may return at another address, because its certificate
	// contains its name.
	ml.DeadNodeReclaimTime = time.Millisecond
	ml.Logger = slogadapter.Std(p.libraryLogger(), "memberlist")
	// Serf replaces these delegates only if serf.Config.Merge is set.
	admission := newAdmission(p)
	ml.Merge, ml.Alive = admission, admission
	return ml
}

// manyMembers is the number of members of the WAN pool up to which a late ping is
// repeated over a stream.
const manyMembers = 25

// setWANTimings replaces memberlist's defaults, which are meant for datagrams,
// by values for links between datacenters.
func setWANTimings(ml *memberlist.Config) {
	ml.TCPTimeout = 10 * time.Second
	// UDPBufferSize limits the messages of a packet. With the default of 1400,
	// which fits a datagram, the messages of 300 datacenters that start
	// together fill packets for four minutes. A larger value than 5 KiB is not
	// possible: memberlist counts the messages in a ping packet in one byte.
	// Therefore 254 of the shortest messages (20 bytes and their length) must
	// not fit. Otherwise the peer drops the ping.
	ml.UDPBufferSize = 5 << 10
	// One member is probed every 3 s, including indirect probes. The default is
	// 5 s. By default, failed probes multiply the interval by up to eight,
	// which helps an overloaded server. Here, the multiplier is 1, because a
	// whole datacenter may be partitioned.
	ml.ProbeInterval, ml.ProbeTimeout = 3*time.Second, 1500*time.Millisecond
	ml.AwarenessMaxMultiplier = 1
	// A suspected member has 21 s to 42 s to refute, depending on the number of
	// members that suspect it. In a pool of more than ten members, both times
	// are multiplied by log10 of its size. A link on a dead path finds another
	// path within two seconds. With the defaults, 30 s to 180 s, a partitioned
	// half of a federation is listed as alive for two minutes.
	ml.SuspicionMult, ml.SuspicionMaxTimeoutMult = 7, 2
	// HandoffQueueDepth limits the unprocessed messages. When a thousand
	// members start, packets arrive with dozens of messages each.
	ml.HandoffQueueDepth = 4096
	// A message is sent to RetransmitMult * log10(members) random members. The
	// value is twice the default. Most copies that a partitioned datacenter
	// sends do not arrive, but its other servers must receive the message.
	ml.RetransmitMult = 8
}

// libraryLogger returns the logger for serf and memberlist. Their level Info
// becomes Debug, because this package logs each membership change. Lines that
// begin with the same words are of one kind, and ratelog limits their rate: a
// peer can cause a line with each packet.
func (p *Pool) libraryLogger() *slog.Logger {
	return slog.New(slogadapter.Filter(slogadapter.Demote(p.cfg.Logger.Handler()), func(r *slog.Record) bool {
		if !editLibraryRecord(r) {
			return false
		}
		if r.Level <= slog.LevelInfo {
			return true
		}
		full, suppressed := p.libraryLines.allow(r.Message)
		if !full {
			r.Level = slog.LevelDebug
		}
		if suppressed > 0 {
			r.AddAttrs(slog.Int("suppressed", suppressed))
		}
		return true
	}))
}

// lineLimiter limits the rate of lines by their first words. It is safe for
// concurrent use.
type lineLimiter struct {
	limiter ratelog.Limiter[string]

	mu    sync.Mutex
	kinds map[string]bool
}

// maxLineKinds bounds the kinds of lines. All further lines are of one kind. The
// first words of a line can contain the name of a member.
const maxLineKinds = 64

// isName reports whether a word may be the name of a member, in the WAN pool
// always and in the LAN pool often.
func isName(word string) bool { return strings.ContainsAny(word, "0123456789.'\"") }

// allow is ratelog.Limiter.Allow for the kind of a line.
func (l *lineLimiter) allow(line string) (full bool, suppressed int) {
	words := strings.Fields(line)
	words = words[:min(len(words), 4)] // the name of the library, and three words
	if i := slices.IndexFunc(words, isName); i >= 0 {
		words = words[:i]
	}
	kind := strings.Join(words, " ")
	l.mu.Lock()
	switch {
	case l.kinds == nil:
		l.kinds = map[string]bool{kind: true}
	case !l.kinds[kind] && len(l.kinds) >= maxLineKinds:
		kind = ""
	default:
		l.kinds[kind] = true
	}
	l.mu.Unlock()
	return l.limiter.Allow(kind)
}

// editLibraryRecord changes records of serf and memberlist that report no fault
// here, and returns false for those to drop. It matches texts, because both
// libraries log lines without an error value.
func editLibraryRecord(r *slog.Record) bool {
	has := func(text string) bool { return strings.Contains(r.Message, text) }
	switch {
	case has("Binding to public address without encryption"): // the transport uses TLS
		return false
	case has("timeout waiting for leave broadcast"): // a leaving server does not wait for all copies of its message
		return false
	case has("but UDP probes failed"): // there is no UDP: memberlist means the packets of the transport
		r.Message, r.Level = "memberlist: member answers over a stream, but not to gossip packets", slog.LevelDebug
	case has("Refuting an alive message"): // peers know the tags of this server from before its restart
		r.Message, _, _ = strings.Cut(r.Message, " meta:(") // bytes of the tags follow
		r.Level = slog.LevelDebug
	case strings.HasSuffix(r.Message, net.ErrClosed.Error()): // memberlist sends after the transport has stopped
		r.Level = slog.LevelDebug
	}
	return true
}

// sharedTransport is the pool's transport for one serf instance. memberlist
// receives nothing before filtered is closed.
type sharedTransport struct {
	*inspector
	filtered <-chan struct{}
}

func (t sharedTransport) PacketCh() <-chan *memberlist.Packet {
	<-t.filtered
	return t.inspector.PacketCh()
}

func (t sharedTransport) StreamCh() <-chan net.Conn {
	<-t.filtered
	return t.inspector.StreamCh()
}

func (t sharedTransport) FinalAdvertiseAddr(string, int) (net.IP, int, error) {
	return t.self.Advertise.Addr().AsSlice(), int(t.self.Advertise.Port()), nil
}

// Shutdown does nothing, because other instances use the transport too.
func (sharedTransport) Shutdown() error { return nil }
