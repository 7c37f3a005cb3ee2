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
	"net"
	"net/netip"
	"slices"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/wanfed/wanfed/internal/backoff"
	"github.com/wanfed/wanfed/tlsutil"
)

// Handler serves one connection. It owns c and closes c. It returns soon after
// ctx has ended. The Mux closes c 250 ms after ctx has ended.
type Handler func(ctx context.Context, c *tls.Conn, p tlsutil.Peer)

// MuxConfig configures a Mux.
type MuxConfig struct {
	Identity *tlsutil.Identity // required
	// MaxPerPeer bounds the open connections of one peer. The role, the node
	// and the datacenter in the certificate identify the peer. All plain text
	// connections (HTTPListener) count as one peer. A connection that a
	// Listener returned counts until it is closed. Default (0): 512. Negative:
	// no limit.
	MaxPerPeer int
	// ProxyFrom lists the networks of load balancers whose connections must
	// begin with a PROXY header of version 2. The address in the header becomes
	// the connection's RemoteAddr. After a header without an address (LOCAL),
	// RemoteAddr is the address of the sender. Other connections must not have
	// a header, except as GatewayAt permits. Default: none.
	ProxyFrom []netip.Prefix
	// GatewayAt reports whether an address, which is not in ProxyFrom, is that
	// of a gateway whose connections may begin with such a header. It is called
	// for connections with a header, and may block until ctx ends. Default: no
	// address.
	GatewayAt func(ctx context.Context, addr netip.Addr) bool
	// OnPeer is called with the peer of each accepted connection. It must not
	// block. Default: not called.
	OnPeer func(tlsutil.Peer)
	Logger *slog.Logger // default: no log

	// Changed by tests.
	// handshakeTimeout bounds the wait for a PROXY header, for the first byte
	// where plain text is accepted, and the time without a byte from the client
	// in a TLS handshake. A handshake takes at most
	// three times as long. 0: 5 s.
	handshakeTimeout time.Duration
	maxHandshakes    int // concurrent; see handshakeLimit; 0: 2048
}

// Mux accepts TLS connections on one port. It passes each connection to the
// handler of the protocol that ALPN (RFC 7301) negotiated. It refuses peers
// that may not use the protocol.
type Mux struct {
	cfg        MuxConfig
	self       tlsutil.Peer
	log        *slog.Logger
	refusals   *refusals
	handshakes *handshakeLimit
	admission  *admission
	peers      peerLimit

	mu        sync.Mutex
	protocols []*muxProtocol  // in order of preference; immutable when running
	listeners []*connListener // immutable when running
	plain     *connListener   // of plain text connections; nil: none; immutable when running
	running   bool
	conns     map[net.Conn]struct{} // accepted, not closed and not passed to a Listener
	stopping  bool
	accepted  uint64
}

// muxProtocol is a registered protocol id with counts of its connections.
type muxProtocol struct {
	alpn      string
	roles     []tlsutil.Role
	sameDC    bool
	anonymous bool // clients have no certificate
	handle    Handler
	open      atomic.Int64
	total     atomic.Uint64
}

// NewMux checks cfg. It does not listen yet.
func NewMux(cfg MuxConfig) (*Mux, error) {
	if cfg.Identity == nil {
		return nil, errors.New("mux: Identity is missing")
	}
	if slices.ContainsFunc(cfg.ProxyFrom, func(p netip.Prefix) bool { return !p.IsValid() }) {
		return nil, errors.New("mux: ProxyFrom has an entry that is not a network")
	}
	cfg.handshakeTimeout = cmp.Or(cfg.handshakeTimeout, 5*time.Second)
	cfg.maxHandshakes = cmp.Or(cfg.maxHandshakes, 2048)
	// Servers and gateways need a few connections. Many programs may share the
	// certificate of an operator.
	cfg.MaxPerPeer = cmp.Or(cfg.MaxPerPeer, 512)
	cfg.ProxyFrom = unmapped(cfg.ProxyFrom)
	log := orDiscard(cfg.Logger)
	return &Mux{
		cfg: cfg, self: cfg.Identity.Peer(), log: log, refusals: newRefusals(log),
		handshakes: newHandshakeLimit(cfg.maxHandshakes), admission: newAdmission(),
		peers: peerLimit{max: cfg.MaxPerPeer, open: map[tlsutil.Peer]int{}},
		conns: map[net.Conn]struct{}{},
	}, nil
}

// Handle registers h for a protocol id. If a client offers several ids, the Mux
// chooses the id that was registered first. Only peers with one of the roles
// are accepted. If sameDC is true, only peers of the local datacenter are
// accepted. Handle panics if the id is already registered or Run was called.
func (m *Mux) Handle(alpn string, roles []tlsutil.Role, sameDC bool, h Handler) {
	if alpn == "" {
		panic("wanfed: Mux.Handle needs a protocol id")
	}
	m.handle(alpn, roles, sameDC, h)
}

// HandleAnonymous registers h for a protocol id whose clients have no
// certificate and need not know the CA: see tlsutil.Identity.EnrollConfig. A
// connection has this protocol only if the client offers no other one. The peer
// has only the role tlsutil.RoleAnonymous. h must authenticate the client, and
// must bound the time. HandleAnonymous panics like Handle.
func (m *Mux) HandleAnonymous(alpn string, h Handler) {
	m.Handle(alpn, []tlsutil.Role{tlsutil.RoleAnonymous}, false, h)
	m.mu.Lock()
	defer m.mu.Unlock()
	m.protocol(alpn).anonymous = true
}

// handle implements Handle. It also accepts the id "" for clients that offer no
// protocol id.
func (m *Mux) handle(alpn string, roles []tlsutil.Role, sameDC bool, h Handler) {
	m.mu.Lock()
	defer m.mu.Unlock()
	switch {
	case h == nil || len(roles) == 0:
		panic("wanfed: Mux.Handle needs roles and a handler")
	case m.running:
		panic("wanfed: Mux.Handle(" + alpn + ") after Run")
	case m.protocol(alpn) != nil:
		panic("wanfed: Mux.Handle(" + alpn + ") twice")
	}
	m.protocols = append(m.protocols, &muxProtocol{alpn: alpn, roles: slices.Clone(roles), sameDC: sameDC, handle: h})
}

// protocol returns the registered protocol with the id alpn, or nil.
func (m *Mux) protocol(alpn string) *muxProtocol {
	for _, proto := range m.protocols {
		if proto.alpn == alpn {
			return proto
		}
	}
	return nil
}

// Run accepts connections on ln until ctx ends. It then closes ln and all
// connections that no Listener returned, waits for all handlers, and returns
// nil. If ln fails permanently, Run returns the error. Call Run once.
func (m *Mux) Run(ctx context.Context, ln net.Listener) error {
	ctx, cancel := context.WithCancel(ctx)
	var wg sync.WaitGroup
	defer wg.Wait()
	defer func() {
		for _, l := range m.listeners {
			l.Close()
		}
	}()
	defer cancel()
	cfg := m.begin(ln.Addr())
	wg.Go(func() {
		<-ctx.Done()
		ln.Close()
		m.closeAll()
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
			tracked := m.newTrackedConn(c)
			hs := m.handshakes.acquire(ctx, m.wrapConn(tracked))
			if hs == nil {
				c.Close()
				return nil
			}
			wg.Go(func() { m.serve(ctx, hs, tracked, cfg) })
		case !isTemporary(err):
			return fmt.Errorf("accept on %s: %w", ln.Addr(), err)
		default:
			m.handshakes.shed() // frees a file descriptor
			m.refusals.record(acceptFailed, nil, err)
			backoff.Sleep(ctx, retry.Next(), nil)
		}
	}
}

// isTemporary reports whether a shortage on this machine, or the client, caused
// an accept error. Accept may then succeed later.
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
	anonymous := map[string]*tls.Config{}
	for _, proto := range m.protocols {
		switch {
		case proto.anonymous:
			anonymous[proto.alpn] = m.cfg.Identity.EnrollConfig(proto.alpn)
		case proto.alpn != "":
			ids = append(ids, proto.alpn)
		}
	}
	cfg := m.cfg.Identity.ServerConfig(ids...)
	choose := cfg.GetConfigForClient
	cfg.GetConfigForClient = func(hello *tls.ClientHelloInfo) (*tls.Config, error) {
		chosen, err := choose(hello)
		if err == nil && len(hello.SupportedProtos) == 1 {
			chosen = cmp.Or(anonymous[hello.SupportedProtos[0]], chosen)
		}
		return chosen, err
	}
	return captureHello(cfg)
}

// serve performs the handshake of hs and runs the handler of the negotiated
// protocol. hs.raw wraps tracked, the accepted connection.
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
	err := m.readProxy(ctx, hs, limit)
	if p, ok := raw.(*sniffConn); err == nil && ok {
		var plain bool
		if plain, err = p.isPlainText(limit); plain {
			m.handshakes.end(hs)
			m.servePlain(ctx, raw, tracked)
			return
		}
	}
	c, hello := tls.Server(raw, cfg), &clientHello{onSeen: func() { m.handshakes.noteHello(hs) }}
	if err == nil {
		tracked.admitted = admitted{from: m.admission, source: sourceOf(raw.RemoteAddr())}
		err = tracked.handshake(context.WithValue(ctx, helloKey{}, hello), c, m.cfg.handshakeTimeout)
	}
	if err == nil && len(c.ConnectionState().PeerCertificates) > 0 {
		err = tracked.guard.Admit(c)
	}
	shed := m.handshakes.end(hs)
	if err != nil || shed {
		m.rejectPlainHTTP(err)
		raw.Close()
		switch {
		case ctx.Err() != nil: // the Mux is stopping; the peer is not at fault
		case shed:
			m.refusals.record(refusedShed, raw.RemoteAddr(), nil, "hello", hello.seen)
		default:
			m.refusals.handshakeFailed(raw.RemoteAddr(), hello, err)
		}
		return
	}
	proto, p, ok := m.authorize(c, hello)
	if ok && !m.peers.enter(p, tracked) {
		m.refusals.record(refusedPeerLimit, raw.RemoteAddr(), nil, "peer", p, "alpn", proto.alpn)
		ok = false
	}
	if !ok {
		closeConn(c)
		return
	}
	if m.cfg.OnPeer != nil && !proto.anonymous {
		m.cfg.OnPeer(p)
	}
	m.log.Debug("connection accepted", "peer", p, "alpn", proto.alpn, "remote", raw.RemoteAddr())
	proto.total.Add(1)
	proto.open.Add(1)
	defer proto.open.Add(-1)
	proto.handle(ctx, c, p)
}

// servePlain passes a plain text connection to the HTTPListener that accepts
// plain text. raw wraps tracked.
func (m *Mux) servePlain(ctx context.Context, raw net.Conn, tracked *trackedConn) {
	if !m.peers.enter(tlsutil.Peer{}, tracked) {
		m.refusals.record(refusedPeerLimit, raw.RemoteAddr(), nil)
		raw.Close()
		return
	}
	m.untrack(raw)
	if !m.plain.pass(ctx, raw) {
		raw.Close()
	}
}

// authorize returns the protocol of c and the peer. If the peer may not use the
// protocol, authorize records a refusal and returns false.
func (m *Mux) authorize(c *tls.Conn, h *clientHello) (*muxProtocol, tlsutil.Peer, bool) {
	cs, remote := c.ConnectionState(), c.RemoteAddr()
	proto := m.protocol(cs.NegotiatedProtocol)
	if proto == nil {
		reason := refusedNoALPN
		if len(h.alpn) > 0 { // crypto/tls accepts "http/1.1" alone where h2 is configured
			reason = refusedUnknownALPN
		}
		m.refusals.record(reason, remote, nil, "alpn", h.alpn)
		return nil, tlsutil.Peer{}, false
	}
	if proto.anonymous {
		return proto, tlsutil.Peer{Role: tlsutil.RoleAnonymous}, true
	}
	p, err := tlsutil.PeerFromCert(cs.PeerCertificates[0], m.cfg.Identity.Domain())
	switch {
	case err != nil:
		m.refusals.record(refusedCertNoPeer, remote, err)
	case !slices.Contains(proto.roles, p.Role):
		m.refusals.record(refusedRole, remote, nil, "peer", p, "alpn", proto.alpn, "allowed", proto.roles)
	case proto.sameDC && p.DC != m.self.DC:
		m.refusals.record(refusedDC, remote, nil, "peer", p, "alpn", proto.alpn, "allowed", m.self.DC)
	default:
		return proto, p, true
	}
	return nil, p, false
}

// rejectPlainHTTP sends an HTTP response to a client that sent plain HTTP to a
// port that serves HTTPS. err is the error of the handshake.
func (m *Mux) rejectPlainHTTP(err error) {
	var plain tls.RecordHeaderError
	if !errors.As(err, &plain) || plain.Conn == nil || m.protocol("http/1.1") == nil {
		return
	}
	switch string(plain.RecordHeader[:]) {
	case "GET /", "HEAD ", "POST ", "PUT /", "OPTIO", "DELET", "PATCH":
		plain.Conn.SetWriteDeadline(time.Now().Add(closeTimeout))
		_, _ = io.WriteString(plain.Conn,
			"HTTP/1.0 400 Bad Request\r\n\r\nThis port speaks HTTPS, with client certificates.\n")
	}
}

// track registers c. The end of Run closes registered connections. track
// returns false if the Mux is stopping.
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
	delete(m.conns, c)
}

// closeGrace is the time for which handlers may still use their connections
// after their context has ended.
const closeGrace = 250 * time.Millisecond

// closeAll refuses new connections. It closes the tracked connections after
// closeGrace.
func (m *Mux) closeAll() {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.stopping = true
	limit := time.Now().Add(closeGrace)
	for c := range m.conns {
		c.SetDeadline(limit) // unblocks reads and writes without an earlier deadline
	}
	time.AfterFunc(closeGrace, func() {
		m.mu.Lock()
		defer m.mu.Unlock()
		for c := range m.conns {
			c.Close()
		}
	})
}

// MuxStats counts the connections of a Mux since NewMux.
type MuxStats struct {
	Accepted    uint64            // TCP connections
	Handshaking int               // unfinished handshakes now
	Refused     map[string]uint64 // refused connections, and failures to accept, by reason
	Protocols   []ProtocolStats   // in order of preference
}

// ProtocolStats counts the connections of one protocol id.
type ProtocolStats struct {
	ALPN  string
	Open  int    // open now, without connections that a Listener returned
	Total uint64 // since NewMux
}

// Stats returns the current counts. It may be called at any time.
func (m *Mux) Stats() MuxStats {
	m.mu.Lock()
	defer m.mu.Unlock()
	s := MuxStats{Accepted: m.accepted, Handshaking: m.handshakes.len(), Refused: m.refusals.counts()}
	for _, proto := range m.protocols {
		s.Protocols = append(s.Protocols, ProtocolStats{
			ALPN: proto.alpn, Open: int(proto.open.Load()), Total: proto.total.Load(),
		})
	}
	return s
}
