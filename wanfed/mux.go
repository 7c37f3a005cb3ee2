// SPDX-License-Identifier: MPL-2.0

package wanfed

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"slices"
	"sync"
	"time"

	"github.com/wanfed/wanfed/tlsutil"
)

// Handler serves one connection. It owns c, closes it, and returns when it is done with it, at the latest soon after ctx
// ended, when c is also closed under it.
type Handler func(ctx context.Context, c *tls.Conn, p tlsutil.Peer)

// MuxConfig configures a Mux.
type MuxConfig struct {
	Identity *tlsutil.Identity // required
	// HandshakeTimeout bounds the TLS handshake, and what comes before it, from accept on. Default (0): 5 s.
	HandshakeTimeout time.Duration
	// MaxHandshakes bounds how many handshakes run at once. While they do, the next is let in when one is finished, or in the
	// place of one whose peer is slow: first of those without a ClientHello after 250 ms, then of those that take a second.
	// Default (0): 512.
	MaxHandshakes int
	// MaxPerPeer bounds the open connections of one peer, by role, node and datacenter of its certificate, and those that are plain
	// (HTTPListener). Those handed over by a Listener count until they are closed. Negative: no bound. Default (0): 512.
	MaxPerPeer int
	// ProxyFrom are networks of gateways or balancers whose connections have to begin with a PROXY header of version 2, as part of the
	// handshake. The address in it is the connection's RemoteAddr, for logs and for the choice of whom to shed; of a header that
	// names none (LOCAL) it is the sender's own. Others must send no header. Default: nobody sends one.
	ProxyFrom []netip.Prefix
	// Heard, if not nil, is called for each connection that was let in, with who opened it. It must not block.
	OnPeer func(tlsutil.Peer)
	Logger *slog.Logger // default: nothing is logged
}

// Mux accepts TLS connections on one port and hands each to the handler of the protocol that it negotiated by ALPN
// (RFC 7301). Who may not use a protocol is turned away.
type Mux struct {
	cfg    MuxConfig
	own    tlsutil.Peer
	log    *slog.Logger
	refuse *refusals
	shakes *shakes
	peers  peers

	mu        sync.Mutex
	routes    []*muxRoute // in order of preference; complete when running
	listeners []*muxListener
	plain     *muxListener // takes what is not TLS; nil: nobody does. Complete when running
	running   bool
	addr      net.Addr
	conns     map[net.Conn]struct{} // accepted and neither closed nor handed over
	stopping  bool
	drainedc  chan struct{} // closed when stopping and conns is empty
	accepted  uint64
}

// muxRoute is one protocol. Its counters are guarded by Mux.mu.
type muxRoute struct {
	alpn   string
	roles  []tlsutil.Role
	sameDC bool
	handle Handler
	open   int
	total  uint64
}

// NewMux checks cfg. It listens on nothing yet.
func NewMux(cfg MuxConfig) (*Mux, error) {
	if cfg.Identity == nil {
		return nil, errors.New("mux: no Identity")
	}
	if cfg.HandshakeTimeout < 0 || cfg.MaxHandshakes < 0 {
		return nil, errors.New("mux: HandshakeTimeout and MaxHandshakes must not be negative")
	}
	if slices.ContainsFunc(cfg.ProxyFrom, func(p netip.Prefix) bool { return !p.IsValid() }) {
		return nil, errors.New("mux: ProxyFrom has something that is no network")
	}
	if cfg.HandshakeTimeout == 0 {
		cfg.HandshakeTimeout = 5 * time.Second
	}
	if cfg.MaxHandshakes == 0 {
		cfg.MaxHandshakes = 512
	}
	if cfg.MaxPerPeer == 0 {
		cfg.MaxPerPeer = maxPerPeer
	}
	cfg.ProxyFrom = unmapped(cfg.ProxyFrom)
	log := orDiscard(cfg.Logger)
	return &Mux{
		cfg: cfg, own: cfg.Identity.Peer(), log: log, refuse: newRefusals(log), shakes: newShakes(cfg.MaxHandshakes),
		peers: peers{max: cfg.MaxPerPeer, open: map[tlsutil.Peer]int{}},
		conns: map[net.Conn]struct{}{}, drainedc: make(chan struct{}),
	}, nil
}

// Handle registers h for a protocol id; among several that a client offers, the one registered first is chosen. Only peers
// of roles get in, and with sameDC only those of the own datacenter. Call it before Run; registering an id twice, or too
// late, is a mistake in the program and panics.
func (m *Mux) Handle(alpn string, roles []tlsutil.Role, sameDC bool, h Handler) {
	if alpn == "" {
		panic("wanfed: Mux.Handle needs a protocol id")
	}
	m.handle(alpn, roles, sameDC, h)
}

// handle is Handle that also takes "", for clients that offer no protocol.
func (m *Mux) handle(alpn string, roles []tlsutil.Role, sameDC bool, h Handler) {
	m.mu.Lock()
	defer m.mu.Unlock()
	switch {
	case h == nil || len(roles) == 0:
		panic("wanfed: Mux.Handle needs roles and a handler")
	case m.running:
		panic("wanfed: Mux.Handle(" + alpn + ") after Run")
	case slices.ContainsFunc(m.routes, func(r *muxRoute) bool { return r.alpn == alpn }):
		panic("wanfed: Mux.Handle(" + alpn + ") twice")
	}
	m.routes = append(m.routes, &muxRoute{alpn: alpn, roles: slices.Clone(roles), sameDC: sameDC, handle: h})
}

// Run accepts on ln until ctx ends, then closes ln and all connections that were not handed over to a Listener, waits for
// all handlers, and returns nil. An error of ln that does not pass is returned. Call it once.
func (m *Mux) Run(ctx context.Context, ln net.Listener) error {
	ctx, cancel := context.WithCancel(ctx)
	var wg sync.WaitGroup
	defer wg.Wait()
	defer m.closeListeners()
	defer cancel()
	cfg := m.begin(ln.Addr())
	wg.Go(func() {
		<-ctx.Done()
		ln.Close()
		m.closeAll(&wg)
	})
	var wait time.Duration
	for {
		c, err := ln.Accept()
		switch {
		case ctx.Err() != nil:
			if err == nil {
				c.Close()
			}
			return nil
		case err == nil:
			wait = 0
			own := &counted{Conn: c}
			sh := m.shakes.admit(ctx, m.wrap(own))
			if sh == nil {
				c.Close()
				return nil
			}
			wg.Go(func() { m.serve(ctx, sh, own, cfg) })
		case !passing(err):
			return fmt.Errorf("accept on %s: %w", ln.Addr(), err)
		default:
			m.shakes.shedOne() // it may be file descriptors that are short
			wait = min(max(2*wait, 5*time.Millisecond), time.Second)
			m.refuse.acceptFailed(err)
			if !sleep(ctx, wait) {
				return nil
			}
		}
	}
}

// begin fixes the set of protocols.
func (m *Mux) begin(addr net.Addr) *tls.Config {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.running {
		panic("wanfed: Mux.Run twice")
	}
	m.running, m.addr = true, addr
	var ids []string
	for _, r := range m.routes {
		if r.alpn != "" {
			ids = append(ids, r.alpn)
		}
	}
	return noteHello(m.cfg.Identity.ServerConfig(ids...))
}

// sleep waits and says whether ctx is still alive.
func sleep(ctx context.Context, d time.Duration) bool {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return true
	case <-ctx.Done():
		return false
	}
}

// serve does the handshake of sh's connection, which is around own, and runs the handler.
func (m *Mux) serve(ctx context.Context, sh *shaking, own *counted, cfg *tls.Config) {
	raw := sh.raw
	if !m.track(raw) {
		m.shakes.end(sh)
		raw.Close()
		return
	}
	defer m.forget(raw)
	m.shakes.begin(sh)
	limit := time.Now().Add(m.cfg.HandshakeTimeout)
	err := m.readProxy(sh, limit)
	if p, ok := raw.(*peeked); err == nil && ok && p.peek(limit) && p.first != recordHandshake {
		m.shakes.end(sh)
		if !m.peers.enter(tlsutil.Peer{}, own) {
			m.refuse.note(tooMany, raw.RemoteAddr(), nil)
			raw.Close()
			return
		}
		m.plain.take(ctx, raw)
		return
	}
	c, hello := tls.Server(raw, cfg), &hello{heard: func() { m.shakes.hear(sh) }}
	if err == nil {
		err = m.shake(context.WithValue(ctx, helloKey{}, hello), c, limit)
	}
	shed := m.shakes.end(sh)
	if err != nil || shed {
		m.tellHTTP(err)
		raw.Close()
		switch {
		case ctx.Err() != nil: // it is this side that ends
		case shed:
			m.refuse.note(crowded, raw.RemoteAddr(), nil, "hello", hello.seen)
		default:
			m.refuse.handshakeFailed(raw.RemoteAddr(), hello, err)
		}
		return
	}
	r, p, ok := m.admit(c, hello)
	if ok && !m.peers.enter(p, own) {
		m.refuse.note(tooMany, raw.RemoteAddr(), nil, "peer", p, "alpn", r.alpn)
		ok = false
	}
	if !ok {
		closeConn(c)
		return
	}
	if m.cfg.OnPeer != nil {
		m.cfg.OnPeer(p)
	}
	m.log.Debug("connection accepted", "peer", p, "alpn", r.alpn, "remote", raw.RemoteAddr())
	m.opened(r, 1)
	defer m.opened(r, -1)
	r.handle(ctx, c, p)
}

func (m *Mux) shake(ctx context.Context, c *tls.Conn, limit time.Time) error {
	ctx, cancel := context.WithDeadline(ctx, limit)
	defer cancel()
	return c.HandshakeContext(ctx)
}

// admit finds the handler and checks that the peer may use it.
func (m *Mux) admit(c *tls.Conn, h *hello) (*muxRoute, tlsutil.Peer, bool) {
	cs := c.ConnectionState()
	remote := c.RemoteAddr()
	i := slices.IndexFunc(m.routes, func(r *muxRoute) bool { return r.alpn == cs.NegotiatedProtocol })
	if i < 0 {
		why := noALPN
		if len(h.alpn) > 0 { // "http/1.1" alone: crypto/tls lets it pass beside h2
			why = unknownALPN
		}
		m.refuse.note(why, remote, nil, "alpn", h.alpn)
		return nil, tlsutil.Peer{}, false
	}
	r := m.routes[i]
	p, err := tlsutil.PeerFromCert(cs.PeerCertificates[0], m.cfg.Identity.Domain())
	switch {
	case err != nil:
		m.refuse.note(certNoPeer, remote, err)
	case !slices.Contains(r.roles, p.Role):
		m.refuse.note(wrongRole, remote, nil, "peer", p, "alpn", r.alpn, "allowed", r.roles)
	case r.sameDC && p.DC != m.own.DC:
		m.refuse.note(wrongDC, remote, nil, "peer", p, "alpn", r.alpn, "allowed", m.own.DC)
	default:
		return r, p, true
	}
	return nil, p, false
}
