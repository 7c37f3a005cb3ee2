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

	"github.com/wanfed/wanfed/tlsutil"
)

// TunnelConfig configures a Tunnel.
type TunnelConfig struct {
	Identity *tlsutil.Identity // required
	Dialer   *Dialer           // required; its book tells which servers this datacenter has
	Mux      *Mux              // required; not yet running
	// Advertise is the ip:port that members of the pools are told to reach this server at. Required.
	Advertise string
	// QueueBytes bounds what waits in one link. Default (0): 256 KiB.
	QueueBytes int
	// MaxIdleLinks bounds the links that stay open though they had no packet for a minute; those used last stay. Twice as many may
	// be open that had none for two seconds. Each holds some 40 KiB at either end. Default (0): 128.
	MaxIdleLinks int
	Logger       *slog.Logger // default: nothing is logged
}

// Tunnel carries the gossip pools' packets and streams, between datacenters and inside one. All methods may be called from
// any goroutine.
type Tunnel struct {
	cfg  TunnelConfig
	own  tlsutil.Peer
	addr netip.AddrPort // advertised
	book *SharedAddressBook
	log  *slog.Logger
	tm   timing
	life *lifetime
	// faults counts and logs why connections and streams of others were closed.
	faults *refusals

	protocols atomic.Uint64 // counts the changes of consul
	calls     atomic.Pointer[callListener]
	uses      linkUses
	silent    signals // by first gateway's address: a link over it got no echo

	mu       sync.RWMutex
	pools    [PoolLAN + 1]*Transport // nil: not taken part in
	links    map[target]*link
	met      map[target]struct{} // targets that links were up to; at most maxLinks
	sessions map[target]*session
	consul   map[string]bool // datacenters whose servers speak Consul's protocols, as the last dial showed
	counts   map[trafficKey]*counters
}

// NewTunnel checks cfg and registers the tunnel's protocol ids at cfg.Mux.
func NewTunnel(cfg TunnelConfig) (*Tunnel, error) {
	var errs []error
	for what, missing := range map[string]bool{
		"Identity": cfg.Identity == nil, "Dialer": cfg.Dialer == nil, "Mux": cfg.Mux == nil,
	} {
		if missing {
			errs = append(errs, errors.New("no "+what))
		}
	}
	addr, err := netip.ParseAddrPort(cfg.Advertise)
	if err != nil || !addr.Addr().IsValid() || addr.Addr().IsUnspecified() || addr.Port() == 0 {
		errs = append(errs, fmt.Errorf("Advertise %q is no ip:port that others could dial", cfg.Advertise))
	}
	if cfg.QueueBytes < 0 || cfg.MaxIdleLinks < 0 {
		errs = append(errs, errors.New("QueueBytes and QuietLinks must not be negative"))
	}
	if err := errors.Join(errs...); err != nil {
		return nil, fmt.Errorf("tunnel: %w", err)
	}
	cfg.QueueBytes = cmp.Or(cfg.QueueBytes, defaultQueueBytes)
	t := &Tunnel{
		cfg: cfg, own: cfg.Identity.Peer(), addr: netip.AddrPortFrom(addr.Addr().Unmap(), addr.Port()), book: cfg.Dialer.cfg.AddressBook,
		log: orDiscard(cfg.Logger), tm: defaultTiming(), life: newLifetime(),
		links: map[target]*link{}, met: map[target]struct{}{}, sessions: map[target]*session{}, consul: map[string]bool{},
		counts: map[trafficKey]*counters{}, faults: newRefusals(orDiscard(cfg.Logger)),
	}
	t.tm.quietLinks = cmp.Or(cfg.MaxIdleLinks, t.tm.quietLinks)
	servers := []tlsutil.Role{tlsutil.RoleServer}
	cfg.Mux.Handle(ProtoGossip, servers, false, t.serve(t.servePackets))
	cfg.Mux.Handle(ProtoStream, servers, false, t.serve(t.serveStreams))
	cfg.Mux.Handle(ProtoConsulPacket, servers, false, t.serve(t.serveConsulPackets))
	cfg.Mux.Handle(ProtoConsulStream, servers, false, t.serve(t.serveConsulStream))
	return t, nil
}

// Run dials and writes for as long as ctx lives; until then, packets wait in their queues. When ctx ends, what is queued for
// peers that are connected is still written, within a quarter of a second. Run then closes all connections and returns nil
// after the last goroutine that it started. Call it once.
func (t *Tunnel) Run(ctx context.Context) error {
	t.life.run(ctx)
	return nil
}

// serve makes a handler that also ends, and finds its connection closed, when the tunnel's Run has ended. h returns true
// when it handed the connection on.
func (t *Tunnel) serve(h func(context.Context, *tls.Conn, tlsutil.Peer) (kept bool)) Handler {
	return func(ctx context.Context, c *tls.Conn, p tlsutil.Peer) {
		ctx, cancel := context.WithCancel(ctx)
		defer cancel()
		defer context.AfterFunc(t.life.over, cancel)()
		closed := make(chan struct{})
		unwatch := context.AfterFunc(ctx, func() {
			defer close(closed)
			closeConn(c) // wakes h
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

// Transport gives memberlist its NodeAwareTransport for one pool. In the WAN pool, members are called <node>.<dc> and an
// address of the form *.<dc>/<any ip:port> means any server of that datacenter. In the LAN pool they are called <node>, and
// an address without a name means whoever of this datacenter listens there. At most one transport per pool at a time: a
// second call before Shutdown of the first is a mistake in the program and panics.
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

// pool returns the transport of p, nil when there is none now.
func (t *Tunnel) pool(p Pool) *Transport {
	t.mu.RLock()
	defer t.mu.RUnlock()
	if tr := t.pools[p]; tr != nil && !tr.isShut() {
		return tr
	}
	return nil
}

// speaksConsul says whether the servers of dc speak Consul's protocols, as the last dial showed.
func (t *Tunnel) speaksConsul(dc string) bool {
	t.mu.RLock()
	defer t.mu.RUnlock()
	return t.consul[dc]
}

func (t *Tunnel) setConsul(dc string, yes bool) {
	t.mu.Lock()
	was := t.consul[dc]
	if yes {
		t.consul[dc] = true
	} else {
		delete(t.consul, dc)
	}
	t.mu.Unlock()
	if was != yes {
		t.protocols.Add(1)
		t.log.Info("datacenter's gossip protocol changed", "peer", dc, "consul", yes)
	}
}

// meet says whether a link is up to a target for the first time.
func (t *Tunnel) meet(to target) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	if _, ok := t.met[to]; ok || len(t.met) >= maxLinks {
		return false
	}
	t.met[to] = struct{}{}
	return true
}

// name is what the WAN pool calls this server.
func (t *Tunnel) name() string { return t.own.Node + "." + t.own.DC }

// serverAddr is the address of a server of the own datacenter; "" when there is no such server.
func (t *Tunnel) serverAddr(node string) string { return t.book.Load().Servers[node] }

// dial connects to a link's or session's target: by the tunnel's own protocol or, in another datacenter, by Consul's. addr is
// where memberlist says a server of the own datacenter is. When the book says something else, one of the two is out of
// date; whoever answers has the certificate of the server that is meant.
func (t *Tunnel) dial(ctx context.Context, to target, addr, own, consul string) (*tls.Conn, error) {
	ctx, cancel := context.WithTimeout(ctx, t.tm.dial)
	defer cancel()
	d, who := t.cfg.Dialer, Target{DC: to.dc, Node: to.node, Addr: addr}
	if to.dc != t.own.DC {
		return d.Dial(ctx, who, own, consul)
	}
	if known := t.serverAddr(to.node); addr != "" && known != "" && known != addr {
		return d.dialHops(ctx, who, []Path{{Addr: addr, Via: viaServer}, {Addr: known, Via: viaServer}}, []string{own})
	}
	return d.Dial(ctx, who, own)
}

// send queues one packet and returns at once, with the link that has it: nil when it was dropped and counted.
func (t *Tunnel) send(pool Pool, to target, addr string, packet []byte, now time.Time) (*link, error) {
	for {
		l, err := t.linkTo(pool, to)
		if err != nil || l == nil || l.push(pool, to.node, addr, packet, now) {
			return l, err
		}
		// It has just retired; linkTo makes a new one.
	}
}

// linkTo returns the link that carries packets for to, nil when they were dropped.
func (t *Tunnel) linkTo(pool Pool, to target) (*link, error) {
	key := to
	t.mu.RLock()
	if to.dc != t.own.DC {
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
		t.trafficLocked(trafficKey{pool, to.dc}).drop(dropTooManyLinks, 1)
		return nil, nil
	}
	l = newLink(t, key)
	if !t.life.start(l.run) {
		return nil, net.ErrClosed
	}
	t.links[key] = l
	return l, nil
}
