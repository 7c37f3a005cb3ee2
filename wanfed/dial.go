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
	"slices"
	"time"

	"github.com/wanfed/wanfed/tlsutil"
)

// Target is whom to reach.
type Target struct {
	DC   string // required
	Node string // empty: any server of DC
	// Addr (host:port) is only used when DC is the own datacenter: dial this address. Empty: look the node up in the book's
	// Servers; any of them when Node is empty too.
	Addr string
}

// DialerConfig configures a Dialer.
type DialerConfig struct {
	Identity    *tlsutil.Identity  // required; its Peer gives the own datacenter
	AddressBook *SharedAddressBook // required
	// DialTCP opens the TCP connection; addr is ip:port. Default: a net.Dialer's DialContext.
	DialTCP func(ctx context.Context, addr string) (net.Conn, error)
	// LookupIP gives the addresses of a DNS name. Default: net.DefaultResolver.
	LookupIP func(ctx context.Context, host string) ([]net.IP, error)
	// Stagger is how long a hop may take before the next one is tried in parallel. When one fails, the next is tried at
	// once. Default (0): 250 ms.
	AttemptDelay time.Duration
	// AttemptTimeout bounds TCP and TLS of one address, and the lookup of one name. Default (0): 5 s.
	AttemptTimeout time.Duration
	// Mode says which hops to other datacenters are tried first. Default (""): ModeLocal.
	Mode   Mode
	Logger *slog.Logger // default: nothing is logged
}

// Dialer opens TLS connections to servers, of the own datacenter directly and of others through hops of the book. Every
// byte between datacenters goes through it. All methods may be called from any goroutine.
type Dialer struct {
	cfg   DialerConfig
	dc    string // own
	node  string // own
	paths *paths
	names *resolver
	log   *slog.Logger

	worked signals // by datacenter: a dial of it, or a probe, has worked. Those that wait before they dial it again need not
}

// NewDialer checks cfg. A Dialer holds nothing that needs closing.
func NewDialer(cfg DialerConfig) (*Dialer, error) {
	var errs []error
	if cfg.Identity == nil {
		errs = append(errs, errors.New("no Identity"))
	}
	if cfg.AddressBook == nil {
		errs = append(errs, errors.New("no Book"))
	}
	if cfg.AttemptDelay < 0 || cfg.AttemptTimeout < 0 {
		errs = append(errs, errors.New("Stagger and AttemptTimeout must not be negative"))
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
	if cfg.LookupIP == nil {
		cfg.LookupIP = func(ctx context.Context, host string) ([]net.IP, error) {
			return net.DefaultResolver.LookupIP(ctx, "ip", host)
		}
	}
	cfg.AttemptDelay = cmp.Or(cfg.AttemptDelay, 250*time.Millisecond)
	cfg.AttemptTimeout = cmp.Or(cfg.AttemptTimeout, 5*time.Second)
	cfg.Mode = cmp.Or(cfg.Mode, ModeLocal)
	p := cfg.Identity.Peer()
	return &Dialer{
		cfg: cfg, dc: p.DC, node: p.Node, paths: newPaths(cfg.AddressBook, p.DC, cfg.Mode),
		names: newResolver(cfg.LookupIP, cfg.AttemptTimeout), log: orDiscard(cfg.Logger),
	}, nil
}

func dialTCP(ctx context.Context, addr string) (net.Conn, error) {
	d := net.Dialer{KeepAliveConfig: net.KeepAliveConfig{Enable: true, Idle: 10 * time.Second, Interval: 5 * time.Second, Count: 3}}
	return d.DialContext(ctx, "tcp", addr)
}

func orDiscard(l *slog.Logger) *slog.Logger {
	if l == nil {
		return slog.New(slog.DiscardHandler)
	}
	return l
}

// Dial opens a connection to t: to a server of the own datacenter directly, to one of another through the hops of the
// book, staggered in parallel. The first finished TLS handshake wins, and the others are cancelled. The peer's certificate
// is valid for the name called. alpn are protocol ids, best first; the listener chooses, and NegotiatedProtocol of the
// result is one of them.
//
// With TLS 1.3 the handshake is done before the peer has looked at our certificate: that it was refused shows at the first
// Read. Dial blocks until a hop won, all failed or ctx ended; each attempt is bounded by AttemptTimeout. Errors are
// *DialError, ctx's, or wrap ErrNoPath when the book has no way to t.
func (d *Dialer) Dial(ctx context.Context, t Target, alpn ...string) (*tls.Conn, error) {
	hops, err := d.hops(t)
	if err != nil {
		return nil, err
	}
	return d.dialHops(ctx, t, hops, alpn)
}

func (d *Dialer) dialHops(ctx context.Context, t Target, hops []Path, alpn []string) (*tls.Conn, error) {
	if len(alpn) == 0 || slices.Contains(alpn, "") {
		return nil, errors.New("dial: at least one protocol id is needed, and none may be empty")
	}
	a := &attempt{d: d, dc: t.DC, sni: tlsutil.ServerName(t.Node, t.DC, d.cfg.Identity.Domain()), alpn: alpn}
	conn, won, errs := race(ctx, len(hops), d.cfg.AttemptDelay,
		func(ctx context.Context, i int) (*tls.Conn, error) { return a.hop(ctx, hops[i]) }, closeConn)
	if won {
		return conn, nil
	}
	de := &DialError{Target: t, SNI: a.sni, own: t.DC == d.dc}
	for i, err := range errs {
		de.Paths = append(de.Paths, PathError{hops[i], err})
	}
	if ctx.Err() != nil {
		return nil, fmt.Errorf("%w (%w)", de, context.Cause(ctx))
	}
	return nil, de
}

// hops gives the ways to t, in the order to try them.
func (d *Dialer) hops(t Target) ([]Path, error) {
	if err := tlsutil.CheckLabel(t.DC); err != nil {
		return nil, fmt.Errorf("dial: datacenter: %w", err)
	}
	if t.Node != "" {
		if err := tlsutil.CheckLabel(t.Node); err != nil {
			return nil, fmt.Errorf("dial: node: %w", err)
		}
	}
	routes := d.cfg.AddressBook.Load()
	var hops []Path
	switch {
	case t.DC != d.dc:
		if hops = routes.Paths[t.DC]; len(hops) == 0 {
			return nil, fmt.Errorf("%w to datacenter %s: the address book has no gateway for it; "+
				"check that it is federated and that one of its gateways is healthy", ErrNoPath, t.DC)
		}
	case t.Addr != "":
		return []Path{{Addr: t.Addr, Via: viaServer}}, nil
	case t.Node != "":
		addr := routes.Servers[t.Node]
		if addr == "" {
			return nil, fmt.Errorf("%w to server %s: it is no known server of this datacenter, %s; check that it runs and has joined",
				ErrNoPath, t.Node, d.dc)
		}
		return []Path{{Addr: addr, Via: viaServer}}, nil
	default:
		if hops = d.localServers(routes); len(hops) == 0 {
			return nil, fmt.Errorf("%w to a server of this datacenter, %s: none is known; check that it has joined the others",
				ErrNoPath, d.dc)
		}
	}
	return d.paths.order(t.DC, hops, time.Now()), nil
}

// viaServer is what Hop.Via says of a server that is dialed directly.
const viaServer = "server"

// localServers lists the servers of the own datacenter by name, this one last.
func (d *Dialer) localServers(r *AddressBook) []Path {
	names := make([]string, 0, len(r.Servers))
	for n := range r.Servers {
		names = append(names, n)
	}
	slices.SortFunc(names, func(a, b string) int {
		switch {
		case a == d.node:
			return 1
		case b == d.node:
			return -1
		}
		return cmp.Compare(a, b)
	})
	hops := make([]Path, len(names))
	for i, n := range names {
		hops[i] = Path{Addr: r.Servers[n], Via: viaServer}
	}
	return hops
}

// Paths tells what dials, probes and echoes found out about each hop of the book that was tried, sorted by datacenter and
// address, for status and metrics.
func (d *Dialer) Paths() []PathStatus { return d.paths.status() }

// Ways tells the same of all hops to one other datacenter, in the order in which a dial would try them now.
func (d *Dialer) PathsTo(dc string) []PathStatus { return d.paths.ways(dc) }

// Unreachable lists, in no order, the other datacenters of which some hop was tried and none works, as the last dials, probes and
// echoes found: a dial would tell for sure. changed is closed when that may be otherwise.
func (d *Dialer) Unreachable() (dcs []string, changed <-chan struct{}) { return d.paths.unreachable() }
