// SPDX-License-Identifier: MPL-2.0

package wanfed

import (
	"cmp"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"math"
	"net"
	"net/netip"
	"os"
	"slices"
	"time"

	"github.com/wanfed/wanfed/internal/broadcast"
	"github.com/wanfed/wanfed/internal/netaddr"
	"github.com/wanfed/wanfed/tlsutil"
)

// Target is the server, or the datacenter, to dial.
type Target struct {
	DC   string // required
	Node string // empty: any server of DC
	// Addr is the host:port to dial in the local datacenter. It is ignored for
	// other datacenters. Default (""): the address of Node in the address book,
	// or of any server if Node is empty too.
	Addr string
}

// DialerConfig configures a Dialer.
type DialerConfig struct {
	Identity    *tlsutil.Identity  // required; its certificate names the local datacenter
	AddressBook *SharedAddressBook // required
	// DialTCP opens a TCP connection to addr, which is ip:port. Default: the
	// DialContext method of a net.Dialer.
	DialTCP func(ctx context.Context, addr string) (net.Conn, error)
	// AttemptDelay is the time after which the next path is dialed in parallel
	// with a pending attempt (RFC 8305). It grows up to 2 s while dials usually
	// take longer, and by up to 2 s more while the processor is busy. After a
	// failure the next path is dialed at once. Default (0): 250 ms.
	AttemptDelay time.Duration
	// AttemptTimeout bounds the lookup of one name, TCP of one address, and the
	// time without a byte from the peer in a TLS handshake. A handshake takes
	// at most three times as long. Default (0): 5 s.
	AttemptTimeout time.Duration
	// Mode selects the kind of path to other datacenters that is dialed first.
	// Default (""): ModeLocal.
	Mode   Mode
	Logger *slog.Logger // default: no log

	// lookupIP is Resolver.LookupIP of package net. Tests set it. Default:
	// LookupIP of net.DefaultResolver.
	lookupIP func(ctx context.Context, network, host string) ([]net.IP, error)
}

// Dialer opens TLS connections to servers. It dials servers of the local
// datacenter directly, and other datacenters through the paths of the address
// book. All traffic between datacenters uses a Dialer. All methods are safe for
// concurrent use.
type Dialer struct {
	cfg   DialerConfig
	dc    string // of this server
	node  string // of this server
	paths *pathTable
	names *resolver
	limit *dialLimit
	log   *slog.Logger

	// reachable is notified when a dial or a probe of a datacenter succeeds.
	// The key is the datacenter. The notification ends the backoff of links to
	// the datacenter.
	reachable broadcast.Keyed[string]
}

// NewDialer checks cfg and returns a Dialer. A Dialer needs no Close.
func NewDialer(cfg DialerConfig) (*Dialer, error) {
	var errs []error
	if cfg.Identity == nil {
		errs = append(errs, errors.New("Identity is missing"))
	}
	if cfg.AddressBook == nil {
		errs = append(errs, errors.New("AddressBook is missing"))
	}
	if cfg.AttemptDelay < 0 || cfg.AttemptTimeout < 0 {
		errs = append(errs, errors.New("AttemptDelay and AttemptTimeout must not be negative"))
	}
	if err := cfg.Mode.Check(); err != nil {
		errs = append(errs, fmt.Errorf("Mode %w", err))
	}
	if err := errors.Join(errs...); err != nil {
		return nil, fmt.Errorf("dialer: %w", err)
	}
	if cfg.DialTCP == nil {
		cfg.DialTCP = dialTCP
	}
	if cfg.lookupIP == nil {
		cfg.lookupIP = net.DefaultResolver.LookupIP
	}
	cfg.AttemptDelay = cmp.Or(cfg.AttemptDelay, 250*time.Millisecond)
	cfg.AttemptTimeout = cmp.Or(cfg.AttemptTimeout, 5*time.Second)
	cfg.Mode = cmp.Or(cfg.Mode, ModeLocal)
	self := cfg.Identity.Peer()
	return &Dialer{
		cfg: cfg, dc: self.DC, node: self.Node, paths: newPathTable(cfg.AddressBook, self.DC, cfg.Mode),
		names: newResolver(cfg.lookupIP, cfg.AttemptTimeout), limit: newDialLimit(cfg.AttemptTimeout),
		log: orDiscard(cfg.Logger),
	}, nil
}

func dialTCP(ctx context.Context, addr string) (net.Conn, error) {
	d := net.Dialer{KeepAliveConfig: net.KeepAliveConfig{
		Enable: true, Idle: 10 * time.Second, Interval: 5 * time.Second, Count: 3,
	}}
	return d.DialContext(ctx, "tcp", addr)
}

func orDiscard(l *slog.Logger) *slog.Logger {
	return cmp.Or(l, slog.New(slog.DiscardHandler))
}

// Dial opens a TLS connection to t: directly to a server of the local
// datacenter, or through the paths of the address book to another datacenter.
// Dials of other datacenters wait while too many are in progress. Paths are
// dialed with a stagger of AttemptDelay. The first complete TLS handshake wins,
// and the other attempts are cancelled. The certificate of the
// peer is valid for the dialed name. alpn lists protocol ids, best first. The
// listener chooses one of them, and NegotiatedProtocol of the result reports
// the choice.
//
// With TLS 1.3 the handshake ends before the peer has verified the client's
// certificate. If the peer rejects the certificate, the first Read fails. Dial
// blocks until a path wins, all paths have failed, or ctx ends. AttemptTimeout
// bounds each attempt. The error wraps ErrNoPath if the address book has no
// path to t, and the cause of ctx if ctx ended. If all paths failed, the error
// contains the cause of each failure and a remedy.
func (d *Dialer) Dial(ctx context.Context, t Target, alpn ...string) (*tls.Conn, error) {
	paths, err := d.candidates(t)
	if err != nil {
		return nil, err
	}
	return d.dialPaths(ctx, t, paths, alpn)
}

func (d *Dialer) dialPaths(ctx context.Context, t Target, paths []Path, alpn []string) (*tls.Conn, error) {
	if len(alpn) == 0 || slices.Contains(alpn, "") {
		return nil, errors.New("dial: at least one protocol id is needed, and none may be empty")
	}
	if t.DC != d.dc {
		slot, err := d.limit.acquire(ctx, d.class(t.DC, paths, alpn))
		if err != nil {
			return nil, fmt.Errorf("dial %s: %w", t.DC, err)
		}
		defer slot.release()
	}
	r := d.request(t.Node, t.DC, alpn...)
	conn, won, errs := happyEyeballs(ctx, len(paths), r.stagger,
		func(ctx context.Context, i int) (*tls.Conn, error) { return r.dialAndRecord(ctx, paths[i]) }, closeConn)
	if won {
		return conn, nil
	}
	for i, err := range errs {
		errs[i] = fmt.Errorf("%s %s: %w", cmp.Or(paths[i].Via, "path"), paths[i].Addr, err)
	}
	dialErr := &dialError{dc: t.DC, sni: r.sni, local: t.DC == d.dc, errs: errs}
	if ctx.Err() != nil {
		return nil, fmt.Errorf("%w (%w)", dialErr, context.Cause(ctx))
	}
	return nil, dialErr
}

// class returns the class of a dial over paths, the best one first.
func (d *Dialer) class(dc string, paths []Path, alpn []string) dialClass {
	s := pathState{}
	if len(paths) > 0 {
		s = d.paths.get(dc, paths[0].Addr)
	}
	switch {
	case s.hasFailed():
		return dialRetry
	case alpn[0] == ProtoStream:
		return dialStreams
	}
	return dialPackets
}

// candidates returns the paths to t in the order to dial them.
func (d *Dialer) candidates(t Target) ([]Path, error) {
	if err := tlsutil.CheckLabel(t.DC); err != nil {
		return nil, fmt.Errorf("dial: datacenter: %w", err)
	}
	if err := tlsutil.CheckLabel(t.Node); t.Node != "" && err != nil {
		return nil, fmt.Errorf("dial: node: %w", err)
	}
	book := d.cfg.AddressBook.Load()
	paths := book.Paths[t.DC]
	if t.DC != d.dc {
		if len(paths) == 0 {
			return nil, fmt.Errorf("%w to datacenter %s: the address book has no gateway for it; "+
				"check that it is federated and that one of its gateways is healthy", ErrNoPath, t.DC)
		}
		return d.paths.scorer(t.DC).order(paths), nil
	}
	if addr := cmp.Or(t.Addr, book.Servers[t.Node]); addr != "" {
		return []Path{{Addr: addr, Via: viaServer}}, nil
	}
	if t.Node != "" {
		return nil, fmt.Errorf("%w to server %s: it is not a known server of this datacenter, %s; "+
			"check that it runs and has joined", ErrNoPath, t.Node, d.dc)
	}
	if len(book.Servers) == 0 {
		return nil, fmt.Errorf("%w to a server of this datacenter, %s: none is known; "+
			"check that it has joined the others", ErrNoPath, d.dc)
	}
	return d.paths.scorer(t.DC).order(d.localServers(book)), nil
}

// viaServer is Path.Via of a server that is dialed directly.
const viaServer = "server"

// localServers returns paths to the servers of the local datacenter, sorted by
// name, with this server last.
func (d *Dialer) localServers(b *AddressBook) []Path {
	names := slices.Sorted(maps.Keys(b.Servers))
	if i := slices.Index(names, d.node); i >= 0 {
		names = append(slices.Delete(names, i, i+1), d.node)
	}
	paths := make([]Path, len(names))
	for i, name := range names {
		paths[i] = Path{Addr: b.Servers[name], Via: viaServer}
	}
	return paths
}

// Paths returns the status of each path that was used, sorted by datacenter and
// address.
func (d *Dialer) Paths() []PathStatus { return d.paths.status() }

// PathsTo returns the status of every path to another datacenter, in the order
// in which a dial would try the paths now.
func (d *Dialer) PathsTo(dc string) []PathStatus { return d.paths.pathsTo(dc) }

// Unreachable lists the other datacenters without a working path, in no order.
// A datacenter is listed only if at least one path was tried. Unreachable does
// not dial. The channel changed is closed when the result may differ.
func (d *Dialer) Unreachable() (dcs []string, changed <-chan struct{}) { return d.paths.unreachable() }

// ReportFailure records that c, a connection of Dial, failed because of its
// path, for example by a timeout. The next dial tries another path first.
func (d *Dialer) ReportFailure(c *tls.Conn, err error) {
	if p := pathConnOf(c); p != nil {
		d.recordFailure(p.dc, p.path, err)
	}
}

func (d *Dialer) recordFailure(dc string, path Path, err error) {
	d.paths.recordFailure(dc, path, err, func(s *pathState) { s.Failures++ })
}

// pathConn is the TCP connection below a TLS connection of Dial, with its path.
type pathConn struct {
	progressConn
	dc           string
	path         Path
	addr         string        // the dialed ip:port
	handshakeRTT time.Duration // of the TLS handshake
	// rtt is an estimate: half the time of TCP and TLS, which take two round
	// trips together. A gateway does not change this number, because it dials
	// the next gateway only after it has read the ClientHello.
	rtt time.Duration
}

// discardUnacked makes Close drop data that the peer has not acknowledged. By
// default the kernel retransmits such data for minutes. If the path works
// again, the kernel delivers stale data.
func (p *pathConn) discardUnacked() {
	if c, ok := p.Conn.(interface{ SetLinger(sec int) error }); ok {
		_ = c.SetLinger(0)
	}
}

// pathConnOf returns the TCP connection below c, or nil if c is not a
// connection of Dial.
func pathConnOf(c *tls.Conn) *pathConn {
	p, _ := c.NetConn().(*pathConn)
	return p
}

// dialRequest has the parameters that all attempts of one Dial share.
type dialRequest struct {
	d    *Dialer
	dc   string
	sni  string
	alpn []string
	// stagger is the time between the starts of two attempts.
	stagger time.Duration
}

func (d *Dialer) request(node, dc string, alpn ...string) *dialRequest {
	return &dialRequest{
		d: d, dc: dc, sni: tlsutil.ServerName(node, dc, d.cfg.Identity.Domain()), alpn: alpn,
		stagger: d.limit.stagger(d.cfg.AttemptDelay),
	}
}

// dialAndRecord dials one path and records the result in the path table.
func (r *dialRequest) dialAndRecord(ctx context.Context, path Path) (*tls.Conn, error) {
	d, start := r.d, time.Now()
	d.paths.update(r.dc, path, func(s *pathState) { s.Attempts++ })
	conn, err := r.dialPath(ctx, path)
	now := time.Now()
	switch {
	case err == nil:
		p := pathConnOf(conn)
		if d.paths.get(r.dc, path.Addr).rejected {
			break
		}
		d.paths.recordSuccess(r.dc, path, p.addr, p.rtt, func(s *pathState) { s.RTT = p.handshakeRTT })
		if r.dc != d.dc {
			d.limit.succeeded(now.Sub(start), now)
		}
		d.reachable.Notify(r.dc)
	case errors.Is(context.Cause(ctx), errLostRace):
		// Another path won. If that path was dialed later, this path was slow.
		if now.Sub(start) >= r.stagger {
			d.paths.update(r.dc, path, func(s *pathState) { s.lastFailure = now })
		}
	case ctx.Err() != nil && (now.Sub(start) < r.stagger || errors.Is(ctx.Err(), context.Canceled)):
		// The caller ended the dial too early to judge the path.
	default:
		d.recordFailure(r.dc, path, err)
	}
	if err != nil {
		d.log.Debug("dial failed", "sni", r.sni, "gateway", path.Addr, "err", err)
	}
	return conn, err
}

// dialPath dials the address of path. If the address is a DNS name, dialPath
// dials all addresses of the name with a stagger.
func (r *dialRequest) dialPath(ctx context.Context, path Path) (*tls.Conn, error) {
	host, port, err := net.SplitHostPort(path.Addr)
	if err != nil {
		return nil, fmt.Errorf("%q is not host:port: %w", path.Addr, err)
	}
	if _, err := netip.ParseAddr(host); err == nil {
		return r.dialAddr(ctx, path, path.Addr)
	}
	start := time.Now()
	ips, err := r.d.names.lookup(ctx, host)
	if err != nil {
		return nil, &stageError{stageResolve, host, time.Since(start), err}
	}
	permitted := slices.DeleteFunc(slices.Clone(ips), func(ip net.IP) bool {
		a, _ := netip.AddrFromSlice(ip)
		return netaddr.ClassOf(a)&path.Refuse != 0
	})
	if len(permitted) == 0 {
		return nil, &stageError{stageResolve, host, time.Since(start), netaddr.RefusedError(ips)}
	}
	addrs := sortAddrs(permitted, port, r.d.paths.get(r.dc, path.Addr).Remote)
	conn, won, errs := happyEyeballs(ctx, len(addrs), r.stagger,
		func(ctx context.Context, i int) (*tls.Conn, error) { return r.dialAddr(ctx, path, addrs[i]) }, closeConn)
	if !won {
		return nil, errors.Join(errs...)
	}
	return conn, nil
}

// sortAddrs returns the ip:port of each IP address in the order to dial them.
// The address families alternate, IPv6 first (RFC 8305 section 4). The argument
// lastUsed is the ip:port of the last success, or "". It comes first if ips
// contains it. Otherwise it comes last, because a moved host may serve its old
// address for some time.
func sortAddrs(ips []net.IP, port, lastUsed string) []string {
	position := map[string]int{}
	if lastUsed != "" {
		position[lastUsed] = math.MaxInt
	}
	var perFamily [2]int
	for _, ip := range ips {
		addr, family := net.JoinHostPort(ip.String(), port), 0
		if ip.To4() != nil {
			family = 1
		}
		position[addr] = 2*perFamily[family] + family
		if addr == lastUsed {
			position[addr] = -1
		}
		perFamily[family]++
	}
	return slices.SortedFunc(maps.Keys(position), func(a, b string) int {
		return cmp.Compare(position[a], position[b])
	})
}

// dialAddr opens TCP and TLS to one address.
func (r *dialRequest) dialAddr(ctx context.Context, path Path, addr string) (*tls.Conn, error) {
	start := time.Now()
	fail := func(at stage, err error) error {
		e := &stageError{at, addr, time.Since(start), err}
		if addr == path.Addr {
			e.addr = ""
		}
		return e
	}
	raw, err := r.dialTCP(ctx, addr)
	if err != nil {
		return nil, fail(stageConnect, err)
	}
	cfg := r.d.cfg.Identity.ClientConfig(r.sni, r.alpn...)
	cfg.DynamicRecordSizingDisabled = true // several queued packets fit into one record
	guard := r.d.cfg.Identity.Dialed(raw, func(ctx context.Context, name string) error {
		again := *r
		again.sni = name
		c, err := again.dialAddr(ctx, path, addr)
		if err == nil {
			closeConn(c)
		}
		return err
	})
	pc := &pathConn{progressConn: progressConn{Conn: guard}, dc: r.dc, path: path, addr: addr}
	conn := tls.Client(pc, cfg)
	connected := time.Now()
	err = pc.handshake(ctx, conn, r.d.cfg.AttemptTimeout)
	if err == nil {
		err = guard.Admit(conn)
	}
	if err != nil {
		guard.Close()
		return nil, fail(stageHandshake, err)
	}
	pc.handshakeRTT, pc.rtt = time.Since(connected), time.Since(start)/2
	if p := conn.ConnectionState().NegotiatedProtocol; !slices.Contains(r.alpn, p) {
		guard.Close()
		return nil, fail(stageProtocol, fmt.Errorf("the server chose protocol %q, none of %q", p, r.alpn))
	}
	return conn, nil
}

func (r *dialRequest) dialTCP(ctx context.Context, addr string) (net.Conn, error) {
	ctx, cancel := context.WithTimeout(ctx, r.d.cfg.AttemptTimeout)
	defer cancel()
	return r.d.cfg.DialTCP(ctx, addr)
}

// maxHandshake is the longest time of a TLS handshake, in timeouts of
// progressConn.handshake.
const maxHandshake = 3

// progressConn is a connection whose TLS handshake may take long while bytes
// arrive.
type progressConn struct {
	net.Conn
	readTimeout time.Duration // of one Read during the handshake; 0: none
	admitted    admitted      // zero after the handshake
}

// handshake performs the handshake of c, a TLS connection over p. It fails if
// no byte arrives during timeout, or after maxHandshake timeouts.
func (p *progressConn) handshake(ctx context.Context, c *tls.Conn, timeout time.Duration) error {
	ctx, cancel := context.WithTimeout(ctx, maxHandshake*timeout)
	defer cancel()
	p.readTimeout = timeout
	err := c.HandshakeContext(ctx)
	p.admitted.pause()
	p.readTimeout, p.admitted = 0, admitted{}
	p.SetReadDeadline(time.Time{})
	if errors.Is(err, os.ErrDeadlineExceeded) {
		err = fmt.Errorf("%w: %w", context.DeadlineExceeded, err)
	}
	return err
}

func (p *progressConn) Read(b []byte) (int, error) {
	if p.readTimeout == 0 {
		return p.Conn.Read(b)
	}
	p.admitted.pause()
	p.SetReadDeadline(time.Now().Add(p.readTimeout))
	n, err := p.Conn.Read(b)
	if err == nil {
		p.admitted.compute()
	}
	return n, err
}

func (p *progressConn) Write(b []byte) (int, error) {
	p.admitted.pause()
	return p.Conn.Write(b)
}

// closeTimeout bounds the wait of closeConn for a peer that does not read.
const closeTimeout = time.Second

// closeConn sends a TLS close_notify and closes c. It takes at most
// closeTimeout.
func closeConn(c *tls.Conn) {
	t := time.AfterFunc(closeTimeout, func() { c.NetConn().Close() })
	defer t.Stop()
	c.Close()
}
