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
	"net"
	"slices"
	"strings"
	"time"

	"github.com/wanfed/wanfed/internal/broadcast"
	"github.com/wanfed/wanfed/tlsutil"
)

// Target is the server, or the datacenter, to dial.
type Target struct {
	DC   string // required
	Node string // empty: any server of DC
	// Addr (host:port) is the address to dial if DC is the local datacenter; it
	// is ignored otherwise. If it is empty, the address book's Servers give the
	// address of Node, or of any server if Node is empty too.
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
	// with a pending attempt (RFC 8305). After a failure the next path is
	// dialed at once. Default (0): 250 ms.
	AttemptDelay time.Duration
	// AttemptTimeout bounds TCP and TLS of one address, and the lookup of one
	// name. Default (0): 5 s.
	AttemptTimeout time.Duration
	// Mode selects which paths to other datacenters are dialed first. Default
	// (""): ModeLocal.
	Mode   Mode
	Logger *slog.Logger // default: no log

	lookupIP func(ctx context.Context, host string) ([]net.IP, error) // set by tests; nil: net.DefaultResolver
}

// Dialer opens TLS connections to servers: directly inside the local
// datacenter, and through the paths of the address book to other datacenters.
// All traffic between datacenters uses it. All methods are safe for concurrent
// use.
type Dialer struct {
	cfg   DialerConfig
	dc    string // of this server
	node  string // of this server
	paths *pathTable
	names *resolver
	log   *slog.Logger

	// reachable is notified, by datacenter, when a dial or a probe succeeds.
	// The notification ends the backoff of links that wait to dial the
	// datacenter.
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
		cfg.lookupIP = func(ctx context.Context, host string) ([]net.IP, error) {
			return net.DefaultResolver.LookupIP(ctx, "ip", host)
		}
	}
	cfg.AttemptDelay = cmp.Or(cfg.AttemptDelay, 250*time.Millisecond)
	cfg.AttemptTimeout = cmp.Or(cfg.AttemptTimeout, 5*time.Second)
	cfg.Mode = cmp.Or(cfg.Mode, ModeLocal)
	p := cfg.Identity.Peer()
	return &Dialer{
		cfg: cfg, dc: p.DC, node: p.Node, paths: newPathTable(cfg.AddressBook, p.DC, cfg.Mode),
		names: newResolver(cfg.lookupIP, cfg.AttemptTimeout), log: orDiscard(cfg.Logger),
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

// Dial opens a connection to t: directly to a server of the local datacenter,
// or through the paths of the address book to another datacenter. Paths are
// dialed with a stagger of AttemptDelay. The first complete TLS handshake wins
// and the other attempts are cancelled. The certificate of the peer is valid
// for the name that was dialed. alpn lists protocol ids, best first. The
// listener chooses one; NegotiatedProtocol of the result reports it.
//
// With TLS 1.3 the handshake ends before the peer has verified the client's
// certificate. The first Read reports if the peer rejected it. Dial blocks
// until a path wins, all paths have failed, or ctx ends. AttemptTimeout bounds
// each attempt. Errors are of type *DialError, are the error of ctx, or wrap
// ErrNoPath if the address book has no path to t.
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
	a := d.attempt(t.Node, t.DC, alpn...)
	conn, won, errs := happyEyeballs(ctx, len(paths), d.cfg.AttemptDelay,
		func(ctx context.Context, i int) (*tls.Conn, error) { return a.dialAndRecord(ctx, paths[i]) }, closeConn)
	if won {
		return conn, nil
	}
	de := &DialError{Target: t, SNI: a.sni, local: t.DC == d.dc}
	for i, err := range errs {
		de.Paths = append(de.Paths, PathError{paths[i], err})
	}
	if ctx.Err() != nil {
		return nil, fmt.Errorf("%w (%w)", de, context.Cause(ctx))
	}
	return nil, de
}

// candidates returns the paths to t in the order to dial them.
func (d *Dialer) candidates(t Target) ([]Path, error) {
	if err := tlsutil.CheckLabel(t.DC); err != nil {
		return nil, fmt.Errorf("dial: datacenter: %w", err)
	}
	if t.Node != "" {
		if err := tlsutil.CheckLabel(t.Node); err != nil {
			return nil, fmt.Errorf("dial: node: %w", err)
		}
	}
	book := d.cfg.AddressBook.Load()
	var paths []Path
	switch {
	case t.DC != d.dc:
		if paths = book.Paths[t.DC]; len(paths) == 0 {
			return nil, fmt.Errorf("%w to datacenter %s: the address book has no gateway for it; "+
				"check that it is federated and that one of its gateways is healthy", ErrNoPath, t.DC)
		}
	case t.Addr != "":
		return []Path{{Addr: t.Addr, Via: viaServer}}, nil
	case t.Node != "":
		addr := book.Servers[t.Node]
		if addr == "" {
			return nil, fmt.Errorf("%w to server %s: it is not a known server of this datacenter, %s; "+
				"check that it runs and has joined", ErrNoPath, t.Node, d.dc)
		}
		return []Path{{Addr: addr, Via: viaServer}}, nil
	default:
		if paths = d.localServers(book); len(paths) == 0 {
			return nil, fmt.Errorf("%w to a server of this datacenter, %s: none is known; "+
				"check that it has joined the others", ErrNoPath, d.dc)
		}
	}
	return d.paths.order(t.DC, paths, time.Now()), nil
}

// viaServer is Path.Via of a server that is dialed directly.
const viaServer = "server"

// localServers returns paths to the servers of the local datacenter, sorted by
// name, with this server last.
func (d *Dialer) localServers(b *AddressBook) []Path {
	names := slices.SortedFunc(maps.Keys(b.Servers), func(x, y string) int {
		switch {
		case x == d.node:
			return 1
		case y == d.node:
			return -1
		}
		return cmp.Compare(x, y)
	})
	paths := make([]Path, len(names))
	for i, n := range names {
		paths[i] = Path{Addr: b.Servers[n], Via: viaServer}
	}
	return paths
}

// Paths returns the measurements of dials, probes and echoes for each path that
// was used, sorted by datacenter and address.
func (d *Dialer) Paths() []PathStatus { return d.paths.status() }

// PathsTo returns the status of every path to one other datacenter, in the
// order in which a dial would try them now.
func (d *Dialer) PathsTo(dc string) []PathStatus { return d.paths.pathsTo(dc) }

// Unreachable lists, in no order, the other datacenters for which at least one
// path was tried and none works. It reports the last dials, probes and echoes
// and does not dial. changed is closed when the result may differ.
func (d *Dialer) Unreachable() (dcs []string, changed <-chan struct{}) { return d.paths.unreachable() }

// ReportFailure records that c, a connection of Dial that had worked, failed
// because of its path, for example by a timeout. The next dial tries another
// path first.
func (d *Dialer) ReportFailure(c *tls.Conn, err error) {
	if p := pathConnOf(c); p != nil {
		d.recordFailure(p.dc, p.path, err)
	}
}

func (d *Dialer) recordFailure(dc string, path Path, err error) {
	d.paths.recordFailure(dc, path, err, func(s *pathState) { s.Failures++ })
}

// pathConn is the TCP connection below a connection of Dial, with the path that
// it takes.
type pathConn struct {
	net.Conn
	dc           string
	path         Path
	addr         string        // ip:port that was dialed
	handshakeRTT time.Duration // of the TLS handshake
	connectTime  time.Duration // of TCP and TLS together
}

// roundTrip estimates the round trip to the server. TCP and TLS together take
// two round trips. This is also true through a gateway, which dials the next
// gateway only after it has read the ClientHello.
func (p *pathConn) roundTrip() time.Duration { return p.connectTime / 2 }

// discardUnacked makes Close drop data that the peer has not acknowledged. By
// default the kernel would retransmit it for minutes and deliver it, stale,
// when the path works again.
func (p *pathConn) discardUnacked() {
	if c, ok := p.Conn.(interface{ SetLinger(sec int) error }); ok {
		_ = c.SetLinger(0)
	}
}

// pathConnOf returns the TCP connection of a connection of Dial.
func pathConnOf(c *tls.Conn) *pathConn {
	p, _ := c.NetConn().(*pathConn)
	return p
}

// attempt is the state that all paths of one Dial share.
type attempt struct {
	d    *Dialer
	dc   string
	sni  string
	alpn []string
}

func (d *Dialer) attempt(node, dc string, alpn ...string) *attempt {
	return &attempt{d: d, dc: dc, sni: tlsutil.ServerName(node, dc, d.cfg.Identity.Domain()), alpn: alpn}
}

// dialAndRecord dials one path and records the result in the path table.
func (a *attempt) dialAndRecord(ctx context.Context, path Path) (*tls.Conn, error) {
	d, start := a.d, time.Now()
	d.paths.update(a.dc, path, func(s *pathState) { s.Attempts++ })
	conn, err := a.dialPath(ctx, path)
	now := time.Now()
	switch {
	case err == nil:
		p := pathConnOf(conn)
		d.paths.recordSuccess(a.dc, path, p.addr, p.roundTrip(), func(s *pathState) { s.RTT = p.handshakeRTT })
		d.reachable.Notify(a.dc)
	case errors.Is(context.Cause(ctx), errLostRace):
		// Not a failure. But if the winner started later, this path was slow.
		if now.Sub(start) >= d.cfg.AttemptDelay {
			d.paths.update(a.dc, path, func(s *pathState) { s.lastFailure = now })
		}
	case ctx.Err() != nil && (now.Sub(start) < d.cfg.AttemptDelay || errors.Is(ctx.Err(), context.Canceled)):
		// The caller cancelled the dial too early to judge the path.
	default:
		d.recordFailure(a.dc, path, err)
	}
	if err != nil {
		d.log.Debug("dial failed", "sni", a.sni, "gateway", path.Addr, "err", err)
	}
	return conn, err
}

// dialPath dials the address of path, or all addresses of its name with a
// stagger.
func (a *attempt) dialPath(ctx context.Context, path Path) (*tls.Conn, error) {
	host, port, err := net.SplitHostPort(path.Addr)
	if err != nil {
		return nil, fmt.Errorf("%q is not host:port: %w", path.Addr, err)
	}
	if net.ParseIP(strings.SplitN(host, "%", 2)[0]) != nil {
		return a.dialAddr(ctx, path, path.Addr)
	}
	addrs, err := a.resolve(ctx, host, port, a.d.paths.get(a.dc, path.Addr).Remote)
	if err != nil {
		return nil, err
	}
	conn, won, errs := happyEyeballs(ctx, len(addrs), a.d.cfg.AttemptDelay,
		func(ctx context.Context, i int) (*tls.Conn, error) { return a.dialAddr(ctx, path, addrs[i]) }, closeConn)
	if !won {
		return nil, errors.Join(errs...)
	}
	return conn, nil
}

// resolve returns ip:port for each address of host. The address that worked
// last comes first, then the address families alternate (RFC 8305 section 4).
// If the name no longer has the address that worked last, that address is tried
// last, because records of a moved host overlap.
func (a *attempt) resolve(ctx context.Context, host, port, last string) ([]string, error) {
	start := time.Now()
	ips, err := a.d.names.lookup(ctx, host)
	if err != nil {
		return nil, &stageError{stageResolve, host, time.Since(start), err}
	}
	addrs := sortAddrs(ips, port, last)
	if last != "" && addrs[0] != last {
		addrs = append(addrs, last)
	}
	return addrs, nil
}

func sortAddrs(ips []net.IP, port, last string) []string {
	var v4, v6 []string
	for _, ip := range ips {
		s := net.JoinHostPort(ip.String(), port)
		if ip.To4() != nil {
			v4 = append(v4, s)
		} else {
			v6 = append(v6, s)
		}
	}
	var out []string
	for i := range max(len(v4), len(v6)) {
		if i < len(v6) {
			out = append(out, v6[i])
		}
		if i < len(v4) {
			out = append(out, v4[i])
		}
	}
	if i := slices.Index(out, last); i > 0 {
		out = slices.Insert(slices.Delete(out, i, i+1), 0, last)
	}
	return out
}

// dialAddr opens TCP and TLS to one address.
func (a *attempt) dialAddr(ctx context.Context, path Path, addr string) (*tls.Conn, error) {
	start := time.Now()
	fail := func(at stage, err error) error {
		e := &stageError{at, addr, time.Since(start), err}
		if addr == path.Addr {
			e.addr = ""
		}
		return e
	}
	ctx, cancel := context.WithTimeout(ctx, a.d.cfg.AttemptTimeout)
	defer cancel()
	raw, err := a.d.cfg.DialTCP(ctx, addr)
	if err != nil {
		return nil, fail(stageConnect, err)
	}
	cfg := a.d.cfg.Identity.ClientConfig(a.sni, a.alpn...)
	cfg.DynamicRecordSizingDisabled = true // several queued packets fit into one record
	pc := &pathConn{Conn: raw, dc: a.dc, path: path, addr: addr}
	conn := tls.Client(pc, cfg)
	connected := time.Now()
	if err := conn.HandshakeContext(ctx); err != nil {
		raw.Close()
		return nil, fail(stageHandshake, err)
	}
	pc.handshakeRTT, pc.connectTime = time.Since(connected), time.Since(start)
	if p := conn.ConnectionState().NegotiatedProtocol; !slices.Contains(a.alpn, p) {
		raw.Close()
		return nil, fail(stageProtocol, fmt.Errorf("the server chose protocol %q, none of %q", p, a.alpn))
	}
	return conn, nil
}

// closeTimeout bounds how long closeConn waits for a peer that does not read.
const closeTimeout = time.Second

// closeConn sends a TLS close_notify and closes c. It takes at most
// closeTimeout.
func closeConn(c *tls.Conn) {
	t := time.AfterFunc(closeTimeout, func() { c.NetConn().Close() })
	defer t.Stop()
	c.Close()
}
