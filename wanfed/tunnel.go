// SPDX-License-Identifier: MPL-2.0

package wanfed

import (
	"cmp"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"sync"
	"sync/atomic"
	"time"

	"github.com/wanfed/wanfed/internal/broadcast"
	"github.com/wanfed/wanfed/tlsutil"
)

// TunnelConfig configures a Tunnel.
type TunnelConfig struct {
	Identity *tlsutil.Identity // required
	Dialer   *Dialer           // required; its address book lists the servers of this datacenter
	Mux      *Mux              // required; not running yet
	// Advertise is the ip:port at which other servers dial this server. The
	// pools gossip it. Required.
	Advertise string
	// MaxIdleLinks is the maximum number of open links that carried no packet
	// in the last minute. At most twice as many open links carried no packet in
	// the last two seconds. Above a maximum, the least recently used links are
	// closed. A link uses about 40 KiB at each end. Default (0): 128.
	MaxIdleLinks int
	// Reconnected is called when packets reach another datacenter again after a
	// connection has failed or was replaced because its echoes were late.
	// Packets of the seconds before are lost. It must not block. Default: none.
	Reconnected func(dc string)
	Logger      *slog.Logger // default: no log
}

// Tunnel carries packets and streams of the gossip pools between servers, both
// of other datacenters and of the local one. Packets travel over links and
// streams over sessions. All methods are safe for concurrent use.
type Tunnel struct {
	cfg    TunnelConfig
	self   tlsutil.Peer
	addr   netip.AddrPort // TunnelConfig.Advertise
	book   *SharedAddressBook
	log    *slog.Logger
	limits limits
	group  *runGroup
	began  time.Time

	refusals *refusals // of accepted connections and streams
	unread   *unreadLimit
	grpcLn   atomic.Pointer[connListener]
	linkUses linkUseTimes
	late     lateEchoes
	needless needlessDials // because of late echoes
	// offered is notified of an accepted ProtoDuplex connection, by datacenter.
	offered broadcast.Keyed[string]

	mu       sync.RWMutex
	pools    [PoolLAN + 1]*Transport // nil: this server is not in the pool
	links    map[target]*link
	seen     map[target]struct{} // targets that a link reached; at most maxLinks
	sessions map[target]*session
	accepted map[string][]*packetConn // open ProtoDuplex connections of other datacenters
	consul   map[string]bool          // datacenters whose servers speak Consul's protocols, by the last response
	counts   map[trafficKey]*counters
}

// limits are the tunnel's time limits and sizes. Tests change them.
type limits struct {
	dialTimeout  time.Duration // dial of a link or session, over all paths
	writeTimeout time.Duration // one write
	frameTimeout time.Duration // time from the first to the last byte of a frame or stream header

	queueBytes  int           // capacity of the queue of a link
	maxQueueAge time.Duration // a link that reconnects drops older packets
	// Shortest and longest pause after a failed dial of a link. The longest one is a
	// multiple with more than echoesPerRound links, up to four times backoffMax.
	backoffMin  time.Duration
	backoffMax  time.Duration
	stableAfter time.Duration // a connection of this age resets the backoff

	echoInterval     time.Duration // least time between echo requests that follow packets
	echoTimeout      time.Duration // a link without an echo for this time is dead
	quietAfter       time.Duration // a link without packets for this time is quiet
	idleEchoInterval time.Duration // time between echo requests of a link without packets
	echoesPerRound   int           // links above this number have a longer idleEchoInterval
	maxIdleEcho      time.Duration // longest idleEchoInterval
	idleAfter        time.Duration // a link without packets for this time is idle

	// An idle link is closed if maxIdleLinks other links were used later. A link
	// unused for recentUse is closed if 2*maxIdleLinks others were used later.
	maxIdleLinks    int
	recentUse       time.Duration
	linkIdleTimeout time.Duration // a link without packets for this time is closed

	acceptedIdleTimeout time.Duration // an accepted connection without bytes for this time is closed
	migrateInterval     time.Duration // time between searches for a better path
	consulMaxAge        time.Duration // a Consul packet connection is replaced at this age

	openTimeout        time.Duration // opening of a stream, if the caller has no deadline
	relayIdleTimeout   time.Duration // a relayed stream without bytes for this time is closed
	streamCloseTimeout time.Duration // a stream is read for this time after CloseWrite, then closed
	sessionIdleTimeout time.Duration // a session without streams for this time is closed
	keepaliveInterval  time.Duration // time between pings of yamux
	keepaliveTimeout   time.Duration // one ping or write of yamux
}

func defaultLimits() limits {
	return limits{
		dialTimeout: 15 * time.Second, writeTimeout: 5 * time.Second, frameTimeout: 10 * time.Second,
		queueBytes:  256 << 10, // about 190 packets of memberlist's usual size
		maxQueueAge: time.Second, backoffMin: 100 * time.Millisecond, backoffMax: 5 * time.Second,
		stableAfter:  5 * time.Second,
		echoInterval: 3 * time.Second, echoTimeout: 10 * time.Second,
		quietAfter: 10 * time.Second, idleAfter: time.Minute, idleEchoInterval: 5 * time.Second,
		echoesPerRound: 24, maxIdleEcho: 20 * time.Second,
		maxIdleLinks: 128, recentUse: 2 * time.Second, linkIdleTimeout: 30 * time.Minute,
		acceptedIdleTimeout: 2 * time.Minute, migrateInterval: 30 * time.Second, consulMaxAge: 30 * time.Second,
		openTimeout: 10 * time.Second, relayIdleTimeout: 5 * time.Minute, streamCloseTimeout: 10 * time.Second,
		sessionIdleTimeout: time.Minute,
		keepaliveInterval:  3 * time.Second, keepaliveTimeout: 7 * time.Second,
	}
}

// maxLinks bounds the number of links and the number of sessions, because peers
// choose the names of the targets.
const maxLinks = 4096

// NewTunnel checks cfg and registers the tunnel's protocol ids with cfg.Mux.
func NewTunnel(cfg TunnelConfig) (*Tunnel, error) {
	var errs []error
	if cfg.Identity == nil || cfg.Dialer == nil || cfg.Mux == nil {
		errs = append(errs, errors.New("Identity, Dialer or Mux is missing"))
	}
	addr, err := netip.ParseAddrPort(cfg.Advertise)
	if err != nil || !addr.Addr().IsValid() || addr.Addr().IsUnspecified() || addr.Port() == 0 {
		errs = append(errs, fmt.Errorf("Advertise %q is not an ip:port that others can dial", cfg.Advertise))
	}
	if cfg.MaxIdleLinks < 0 {
		errs = append(errs, errors.New("MaxIdleLinks must not be negative"))
	}
	if err := errors.Join(errs...); err != nil {
		return nil, fmt.Errorf("tunnel: %w", err)
	}
	t := &Tunnel{
		cfg: cfg, self: cfg.Identity.Peer(), addr: netip.AddrPortFrom(addr.Addr().Unmap(), addr.Port()),
		book: cfg.Dialer.cfg.AddressBook, log: orDiscard(cfg.Logger), limits: defaultLimits(), group: newRunGroup(), began: time.Now(),
		links: map[target]*link{}, seen: map[target]struct{}{}, sessions: map[target]*session{},
		accepted: map[string][]*packetConn{}, consul: map[string]bool{},
		counts: map[trafficKey]*counters{}, refusals: newRefusals(orDiscard(cfg.Logger)),
		unread: newUnreadLimit(maxUnread),
	}
	t.limits.maxIdleLinks = cmp.Or(cfg.MaxIdleLinks, t.limits.maxIdleLinks)
	servers := []tlsutil.Role{tlsutil.RoleServer}
	cfg.Mux.Handle(ProtoRelay, servers, true, t.serve(t.servePackets))
	cfg.Mux.Handle(ProtoDuplex, servers, false, t.serve(t.servePackets))
	cfg.Mux.Handle(ProtoGossip, servers, false, t.serve(t.servePackets))
	cfg.Mux.Handle(ProtoStream, servers, false, t.serve(t.serveStreams))
	cfg.Mux.Handle(ProtoConsulPacket, servers, false, t.serve(t.servePackets))
	cfg.Mux.Handle(ProtoConsulStream, servers, false, t.serve(t.serveConsulStream))
	return t, nil
}

// Run dials and writes until ctx ends. Packets sent before Run wait in their
// queues. When ctx ends, Run writes the queued packets of connected peers for
// up to a quarter of a second. It then closes all connections, waits for its
// goroutines and returns nil. Call Run once.
func (t *Tunnel) Run(ctx context.Context) error {
	t.group.run(ctx)
	return nil
}

// serve returns a Handler that calls h and then closes the connection. If h
// returns true, h has passed the connection on, and the connection stays open.
// The end of the tunnel's Run also closes the connection and ends the context
// of h.
func (t *Tunnel) serve(h func(context.Context, *tls.Conn, tlsutil.Peer) (kept bool)) Handler {
	return func(ctx context.Context, c *tls.Conn, p tlsutil.Peer) {
		ctx, cancel := context.WithCancel(ctx)
		defer cancel()
		defer context.AfterFunc(t.group.ctx, cancel)()
		closed := make(chan struct{})
		unwatch := context.AfterFunc(ctx, func() {
			defer close(closed)
			closeConn(c) // unblocks h
		})
		kept := h(ctx, c, p)
		if !unwatch() {
			<-closed
		}
		if !kept {
			closeConn(c)
		}
	}
}

// Transport returns the memberlist.NodeAwareTransport of one pool. In the WAN
// pool, members are called <node>.<dc>. An address of the form *.<dc>/<any
// ip:port> means any server of that datacenter. In the LAN pool, members are
// called <node>. An address without a name means the server of this datacenter
// that listens at the address. A pool has at most one transport at a time.
// Transport panics if the previous transport of the pool is not shut down.
func (t *Tunnel) Transport(p Pool) *Transport {
	if p != PoolWAN && p != PoolLAN {
		panic("wanfed: Tunnel.Transport of an unknown pool")
	}
	tr := newTransport(t, p)
	t.mu.Lock()
	defer t.mu.Unlock()
	if old := t.pools[p]; old != nil && !old.isShut() {
		panic("wanfed: Tunnel.Transport(" + p.String() + ") twice")
	}
	t.pools[p] = tr
	return tr
}

// pool returns the transport of p, or nil if p has no transport now.
func (t *Tunnel) pool(p Pool) *Transport {
	t.mu.RLock()
	defer t.mu.RUnlock()
	if tr := t.pools[p]; tr != nil && !tr.isShut() {
		return tr
	}
	return nil
}

// speaksConsul reports whether the servers of dc use Consul's protocols,
// according to their last response.
func (t *Tunnel) speaksConsul(dc string) bool {
	t.mu.RLock()
	defer t.mu.RUnlock()
	return t.consul[dc]
}

func (t *Tunnel) setConsul(dc string, yes bool) {
	t.mu.Lock()
	was := t.consul[dc]
	t.consul[dc] = yes
	t.mu.Unlock()
	if was != yes {
		t.log.Info("gossip protocol of datacenter changed", "peer", dc, "consul", yes)
	}
}

// firstContact records that a link reached the target to. It reports whether
// this is the first time.
func (t *Tunnel) firstContact(to target) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	if _, ok := t.seen[to]; ok || len(t.seen) >= maxLinks {
		return false
	}
	t.seen[to] = struct{}{}
	return true
}

// name returns the name of this server in the WAN pool.
func (t *Tunnel) name() string { return t.self.Node + "." + t.self.DC }

// serverAddr returns the address of a server of the local datacenter, or "" if
// the address book does not list the server.
func (t *Tunnel) serverAddr(node string) string { return t.book.Load().Servers[node] }

// dialTarget dials the target of a link or session with the protocol id alpn.
// In another datacenter it also offers the protocol id consul, and ProtoDuplex
// before ProtoGossip. In the local datacenter it offers ProtoRelay before
// ProtoGossip. addr is the
// address of a local server according to memberlist. If the address book has a
// different address, one of them is outdated, and dialTarget dials both. The
// certificate identifies the server.
func (t *Tunnel) dialTarget(ctx context.Context, to target, addr, alpn, consul string) (*tls.Conn, error) {
	ctx, cancel := context.WithTimeout(ctx, t.limits.dialTimeout)
	defer cancel()
	d, dest := t.cfg.Dialer, Target{DC: to.dc, Node: to.node, Addr: addr}
	alpns := []string{alpn}
	switch remote := to.dc != t.self.DC; {
	case remote && alpn == ProtoGossip:
		return d.Dial(ctx, dest, ProtoDuplex, alpn, consul)
	case remote:
		return d.Dial(ctx, dest, alpn, consul)
	case alpn == ProtoGossip:
		alpns = []string{ProtoRelay, ProtoGossip}
	}
	if known := t.serverAddr(to.node); addr != "" && known != "" && known != addr {
		paths := []Path{{Addr: addr, Via: viaServer}, {Addr: known, Via: viaServer}}
		return d.dialPaths(ctx, dest, paths, alpns)
	}
	return d.Dial(ctx, dest, alpns...)
}

// send queues one packet and returns at once. A packet that cannot be queued is
// dropped and counted.
func (t *Tunnel) send(pool Pool, to target, addr string, packet []byte, now time.Time) error {
	for {
		l, err := t.linkTo(pool, to)
		if err != nil || l == nil || l.push(pool, to.node, addr, packet, now) {
			return err
		}
		// The link has just retired. linkTo returns a new link.
	}
}

// linkTo returns the link for packets to the target to. If the packet must be
// dropped, linkTo counts the packet and returns nil.
func (t *Tunnel) linkTo(pool Pool, to target) (*link, error) {
	key := to
	t.mu.RLock()
	if to.dc != t.self.DC {
		if !t.consul[to.dc] {
			key.node = ""
		} else if to.node == "" {
			t.mu.RUnlock()
			t.traffic(pool, to.dc).drop(dropNoNode, 1)
			return nil, nil
		}
	}
	l := t.links[key]
	t.mu.RUnlock()
	if l != nil {
		return l, nil
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	if l := t.links[key]; l != nil {
		return l, nil
	}
	if len(t.links) >= maxLinks {
		t.trafficLocked(trafficKey{pool.counted(), to.dc}).drop(dropTooManyLinks, 1)
		return nil, nil
	}
	l = newLink(t, key)
	if !t.group.spawn(l.run) {
		return nil, net.ErrClosed
	}
	t.links[key] = l
	return l, nil
}

// runGroup runs goroutines that may outlive the call that starts them, for
// example a call by memberlist. They do not outlive run. Goroutines spawned
// before run start when run starts. After run has ended, spawn returns false.
type runGroup struct {
	// ctx ends when the context of run ends. It is stored because a spawned
	// goroutine must end with run and not with the call that spawned it.
	ctx context.Context
	end context.CancelFunc

	mu      sync.Mutex
	running bool
	waiting []func(context.Context) // spawned before run
	wg      sync.WaitGroup
}

func newRunGroup() *runGroup {
	g := &runGroup{}
	g.ctx, g.end = context.WithCancel(context.Background())
	return g
}

// spawn runs f in a goroutine that run joins. It returns false if run has
// ended. f must return soon after its context ends.
func (g *runGroup) spawn(f func(context.Context)) bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	switch {
	case g.ctx.Err() != nil:
		return false
	case !g.running:
		g.waiting = append(g.waiting, f)
	default:
		g.wg.Go(func() { f(g.ctx) })
	}
	return true
}

// run blocks until ctx ends and every spawned goroutine has returned.
func (g *runGroup) run(ctx context.Context) {
	g.mu.Lock()
	g.running = true
	for _, f := range g.waiting {
		g.wg.Go(func() { f(g.ctx) })
	}
	g.waiting = nil
	g.mu.Unlock()

	<-ctx.Done()
	g.mu.Lock() // after the unlock, spawn does not start a goroutine
	g.end()
	g.mu.Unlock()
	g.wg.Wait()
}
