// SPDX-License-Identifier: MPL-2.0

package wanfed

import (
	"cmp"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"net"
	"net/netip"
	"slices"
	"sync"
	"syscall"
	"time"

	"github.com/wanfed/wanfed/internal/backoff"
	"github.com/wanfed/wanfed/tlsutil"
)

// Handler serves one connection. It owns c and closes it. It returns when it
// has finished, and soon after ctx has ended, when c is also closed by the Mux.
type Handler func(ctx context.Context, c *tls.Conn, p tlsutil.Peer)

// MuxConfig configures a Mux.
type MuxConfig struct {
	Identity *tlsutil.Identity // required
	// MaxPerPeer bounds the open connections of one peer, by role, node and
	// datacenter of its certificate. All plain text connections (HTTPListener)
	// count as one peer. Connections passed on by a Listener count until they
	// are closed. Default (0): 512. Negative: no limit.
	MaxPerPeer int
	// ProxyFrom lists the networks of gateways or load balancers whose
	// connections must begin with a PROXY header of version 2. The address in
	// the header becomes the connection's RemoteAddr. After a header without an
	// address (LOCAL), RemoteAddr is the address of the sender. Connections
	// from other networks must not have a header. Default: none.
	ProxyFrom []netip.Prefix
	// OnPeer, if not nil, is called with the peer of each connection that was
	// accepted. It must not block.
	OnPeer func(tlsutil.Peer)
	Logger *slog.Logger // default: no log

	// Changed by tests.
	handshakeTimeout time.Duration // of TLS, and of a PROXY header before it; 0: 5 s
	maxHandshakes    int           // concurrent; see handshakeLimit; 0: 512
}

// Mux accepts TLS connections on one port and passes each to the handler of the
// protocol that was negotiated by ALPN (RFC 7301). It refuses peers that may
// not use the protocol.
type Mux struct {
	cfg        MuxConfig
	self       tlsutil.Peer
	log        *slog.Logger
	refusals   *refusals
	handshakes *handshakeLimit
	peers      peerLimit

	mu        sync.Mutex
	protocols []*muxProtocol // in order of preference; complete when running
	listeners []*connListener
	plain     *connListener // accepts plain text; nil: none. Complete when running
	running   bool
	conns     map[net.Conn]struct{} // accepted, not closed and not passed on
	stopping  bool
	drainedc  chan struct{} // closed when stopping and conns is empty
	accepted  uint64
}

// muxProtocol is one protocol id. Its counters are guarded by Mux.mu.
type muxProtocol struct {
	alpn   string
	roles  []tlsutil.Role
	sameDC bool
	handle Handler
	open   int
	total  uint64
}

// defaultMaxPerPeer is generous: servers have a few connections to each other,
// a gateway has one, but many programs may share the certificate of an
// operator.
const defaultMaxPerPeer = 512

// NewMux checks cfg. It does not listen yet.
func NewMux(cfg MuxConfig) (*Mux, error) {
	if cfg.Identity == nil {
		return nil, errors.New("mux: Identity is missing")
	}
	if slices.ContainsFunc(cfg.ProxyFrom, func(p netip.Prefix) bool { return !p.IsValid() }) {
		return nil, errors.New("mux: ProxyFrom has an entry that is not a network")
	}
	cfg.handshakeTimeout = cmp.Or(cfg.handshakeTimeout, 5*time.Second)
	cfg.maxHandshakes = cmp.Or(cfg.maxHandshakes, 512)
	cfg.MaxPerPeer = cmp.Or(cfg.MaxPerPeer, defaultMaxPerPeer)
	cfg.ProxyFrom = unmapped(cfg.ProxyFrom)
	log := orDiscard(cfg.Logger)
	return &Mux{
		cfg: cfg, self: cfg.Identity.Peer(), log: log, refusals: newRefusals(log),
		handshakes: newHandshakeLimit(cfg.maxHandshakes),
		peers:      peerLimit{max: cfg.MaxPerPeer, open: map[tlsutil.Peer]int{}},
		conns:      map[net.Conn]struct{}{}, drainedc: make(chan struct{}),
	}, nil
}

// Handle registers h for a protocol id. If a client offers several ids, the one
// registered first is chosen. Only peers with one of roles are accepted. With
// sameDC, only peers of the local datacenter are accepted. Call Handle before
// Run. Handle panics if the id is registered twice or after Run was called.
func (m *Mux) Handle(alpn string, roles []tlsutil.Role, sameDC bool, h Handler) {
	if alpn == "" {
		panic("wanfed: Mux.Handle needs a protocol id")
	}
	m.handle(alpn, roles, sameDC, h)
}

// handle is Handle. It also accepts "", for clients that offer no protocol id.
func (m *Mux) handle(alpn string, roles []tlsutil.Role, sameDC bool, h Handler) {
	m.mu.Lock()
	defer m.mu.Unlock()
	switch {
	case h == nil || len(roles) == 0:
		panic("wanfed: Mux.Handle needs roles and a handler")
	case m.running:
		panic("wanfed: Mux.Handle(" + alpn + ") after Run")
	case slices.ContainsFunc(m.protocols, func(r *muxProtocol) bool { return r.alpn == alpn }):
		panic("wanfed: Mux.Handle(" + alpn + ") twice")
	}
	m.protocols = append(m.protocols, &muxProtocol{alpn: alpn, roles: slices.Clone(roles), sameDC: sameDC, handle: h})
}

// Run accepts connections on ln until ctx ends. It then closes ln and all
// connections that were not passed on by a Listener, waits for all handlers,
// and returns nil. A permanent error of ln is returned. Call it once.
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
	retry := backoff.Backoff{Min: 5 * time.Millisecond, Max: time.Second}
	for {
		c, err := ln.Accept()
		switch {
		case ctx.Err() != nil:
			if err == nil {
				c.Close()
			}
			return nil
		case err == nil:
			retry.Reset()
			tracked := &trackedConn{Conn: c}
			hs := m.handshakes.acquire(ctx, m.wrapConn(tracked))
			if hs == nil {
				c.Close()
				return nil
			}
			wg.Go(func() { m.serve(ctx, hs, tracked, cfg) })
		case !isTemporary(err):
			return fmt.Errorf("accept on %s: %w", ln.Addr(), err)
		default:
			m.handshakes.shedOne() // frees a file descriptor
			m.refusals.record(acceptError, nil, err)
			if !sleep(ctx, retry.Next()) {
				return nil
			}
		}
	}
}

// isTemporary reports whether an accept error is caused by a shortage or by the
// client, so that Accept may succeed later.
func isTemporary(err error) bool {
	return slices.ContainsFunc([]error{
		syscall.EMFILE, syscall.ENFILE, syscall.ENOBUFS, syscall.ENOMEM,
		syscall.ECONNABORTED, syscall.ECONNRESET, syscall.EINTR,
	}, func(e error) bool { return errors.Is(err, e) })
}

// begin fixes the set of protocols and returns the TLS configuration.
func (m *Mux) begin(addr net.Addr) *tls.Config {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.running {
		panic("wanfed: Mux.Run twice")
	}
	m.running = true
	for _, l := range m.listeners {
		l.addr.Store(&addr)
	}
	var ids []string
	for _, r := range m.protocols {
		if r.alpn != "" {
			ids = append(ids, r.alpn)
		}
	}
	return captureHello(m.cfg.Identity.ServerConfig(ids...))
}

// sleep waits for d. It returns false if ctx ends first.
func sleep(ctx context.Context, d time.Duration) bool {
	backoff.Sleep(ctx, d, nil)
	return ctx.Err() == nil
}

// serve performs the handshake of hs and runs the handler. The argument tracked
// is the accepted connection inside hs.raw.
func (m *Mux) serve(ctx context.Context, hs *handshake, tracked *trackedConn, cfg *tls.Config) {
	raw := hs.raw
	if !m.track(raw) {
		m.handshakes.end(hs)
		raw.Close()
		return
	}
	defer m.untrack(raw)
	m.handshakes.start(hs)
	limit := time.Now().Add(m.cfg.handshakeTimeout)
	err := m.readProxy(hs, limit)
	if p, ok := raw.(*sniffConn); err == nil && ok && p.peek(limit) && p.first != recordHandshake {
		m.handshakes.end(hs)
		if !m.peers.enter(tlsutil.Peer{}, tracked) {
			m.refusals.record(tooMany, raw.RemoteAddr(), nil)
			raw.Close()
			return
		}
		m.untrack(raw)
		if !m.plain.pass(ctx, raw) {
			raw.Close()
		}
		return
	}
	c, hello := tls.Server(raw, cfg), &clientHello{onSeen: func() { m.handshakes.noteHello(hs) }}
	if err == nil {
		err = m.handshake(context.WithValue(ctx, helloKey{}, hello), c, limit)
	}
	shed := m.handshakes.end(hs)
	if err != nil || shed {
		m.answerPlainHTTP(err)
		raw.Close()
		switch {
		case ctx.Err() != nil: // this side is stopping
		case shed:
			m.refusals.record(crowded, raw.RemoteAddr(), nil, "hello", hello.seen)
		default:
			m.refusals.handshakeFailed(raw.RemoteAddr(), hello, err)
		}
		return
	}
	r, p, ok := m.authorize(c, hello)
	if ok && !m.peers.enter(p, tracked) {
		m.refusals.record(tooMany, raw.RemoteAddr(), nil, "peer", p, "alpn", r.alpn)
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

func (m *Mux) handshake(ctx context.Context, c *tls.Conn, limit time.Time) error {
	ctx, cancel := context.WithDeadline(ctx, limit)
	defer cancel()
	return c.HandshakeContext(ctx)
}

// authorize returns the protocol of c if the peer may use it.
func (m *Mux) authorize(c *tls.Conn, h *clientHello) (*muxProtocol, tlsutil.Peer, bool) {
	cs := c.ConnectionState()
	remote := c.RemoteAddr()
	i := slices.IndexFunc(m.protocols, func(r *muxProtocol) bool { return r.alpn == cs.NegotiatedProtocol })
	if i < 0 {
		why := noALPN
		if len(h.alpn) > 0 { // crypto/tls accepts "http/1.1" alone where h2 is configured
			why = unknownALPN
		}
		m.refusals.record(why, remote, nil, "alpn", h.alpn)
		return nil, tlsutil.Peer{}, false
	}
	r := m.protocols[i]
	p, err := tlsutil.PeerFromCert(cs.PeerCertificates[0], m.cfg.Identity.Domain())
	switch {
	case err != nil:
		m.refusals.record(certNoPeer, remote, err)
	case !slices.Contains(r.roles, p.Role):
		m.refusals.record(wrongRole, remote, nil, "peer", p, "alpn", r.alpn, "allowed", r.roles)
	case r.sameDC && p.DC != m.self.DC:
		m.refusals.record(wrongDC, remote, nil, "peer", p, "alpn", r.alpn, "allowed", m.self.DC)
	default:
		return r, p, true
	}
	return nil, p, false
}

// answerPlainHTTP answers a client that sent plain HTTP to a port that serves
// HTTPS. err is the error of its handshake.
func (m *Mux) answerPlainHTTP(err error) {
	var plain tls.RecordHeaderError
	if !errors.As(err, &plain) || plain.Conn == nil ||
		!slices.ContainsFunc(m.protocols, func(r *muxProtocol) bool { return r.alpn == "http/1.1" }) {
		return
	}
	switch string(plain.RecordHeader[:]) {
	case "GET /", "HEAD ", "POST ", "PUT /", "OPTIO", "DELET", "PATCH":
		plain.Conn.SetWriteDeadline(time.Now().Add(closeTimeout))
		_, _ = io.WriteString(plain.Conn,
			"HTTP/1.0 400 Bad Request\r\n\r\nThis port speaks HTTPS, with client certificates.\n")
	}
}

// track registers c to be closed at the end. It returns false if the Mux is
// stopping.
func (m *Mux) track(c net.Conn) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.stopping {
		return false
	}
	m.accepted++
	m.conns[c] = struct{}{}
	return true
}

func (m *Mux) untrack(c net.Conn) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if _, ok := m.conns[c]; !ok {
		return
	}
	delete(m.conns, c)
	if m.stopping && len(m.conns) == 0 {
		close(m.drainedc)
	}
}

func (m *Mux) opened(r *muxProtocol, n int) {
	m.mu.Lock()
	defer m.mu.Unlock()
	r.open += n
	if n > 0 {
		r.total++
	}
}

// closeGrace is the time for which handlers may still use their connections
// after their context has ended.
const closeGrace = 250 * time.Millisecond

// closeAll refuses new connections and closes all others after closeGrace.
func (m *Mux) closeAll(wg *sync.WaitGroup) {
	m.mu.Lock()
	m.stopping = true
	conns := slices.Collect(maps.Keys(m.conns))
	m.mu.Unlock()
	limit := time.Now().Add(closeGrace)
	for _, c := range conns {
		c.SetDeadline(limit) // unblocks reads and writes without an earlier deadline
	}
	if len(conns) == 0 {
		return
	}
	wg.Go(func() {
		t := time.NewTimer(closeGrace)
		defer t.Stop()
		select {
		case <-m.drainedc:
			return
		case <-t.C:
		}
		for _, c := range conns {
			c.Close()
		}
	})
}

// MuxStats counts events of the port since the start.
type MuxStats struct {
	Accepted    uint64            // TCP connections
	Handshaking int               // now
	Refused     map[string]uint64 // by reason
	Protocols   []ProtocolStats   // in order of preference
}

// ProtocolStats counts the connections of one protocol id.
type ProtocolStats struct {
	ALPN  string
	Open  int // now, without connections passed on by a Listener
	Total uint64
}

// Stats may be called at any time.
func (m *Mux) Stats() MuxStats {
	m.mu.Lock()
	defer m.mu.Unlock()
	s := MuxStats{Accepted: m.accepted, Handshaking: m.handshakes.len(), Refused: m.refusals.counts()}
	for _, r := range m.protocols {
		s.Protocols = append(s.Protocols, ProtocolStats{ALPN: r.alpn, Open: r.open, Total: r.total})
	}
	return s
}
