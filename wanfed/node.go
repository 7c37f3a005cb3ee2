// SPDX-License-Identifier: MPL-2.0

package wanfed

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"net"
	"slices"
	"strings"
	"sync"

	"golang.org/x/sync/errgroup"

	"github.com/wanfed/wanfed/tlsutil"
)

// NodeConfig configures a Node.
type NodeConfig struct {
	// Identity says who the node is, and in which datacenter: its certificate is a server's. Required.
	Identity *tlsutil.Identity
	// Advertise is the ip:port at which gateways and the other nodes of this datacenter dial this node. Required.
	Advertise string
	// Gateways has, by the name of each other datacenter, addresses (host:port) of gateways that lead there. Several are tried
	// in the order of what works and is fast; at a tie the one named earlier goes first. See Node.SetGateways for changing them.
	Gateways map[string][]string
	Logger   *slog.Logger // default: nothing is logged
}

// Node is one program's end of the tunnel: a Book, a Dialer, a Prober, a Mux and a Tunnel made for each other. It only wires them: use
// its parts for all that they can do (Tunnel.Transport for memberlist and serf, Mux.Handle and Dialer.Dial for protocols of
// the program's own, Tunnel.Stats), and build them one by one where other wiring is needed. The fields are not changed after
// NewNode. All methods may be called from any goroutine.
type Node struct {
	AddressBook *SharedAddressBook // written only by SetServer and SetGateways
	Dialer      *Dialer
	Prober      *Prober
	Mux         *Mux
	Tunnel      *Tunnel

	own tlsutil.Peer

	mu sync.Mutex // guards changes of Book
}

// viaConfigured is what Hop.Via says of an address that a program, or its configuration, gave.
const viaConfigured = "configured address"

// NewNode checks cfg, reporting all faults at once, and builds the parts. It starts nothing and holds nothing that needs
// closing.
func NewNode(cfg NodeConfig) (*Node, error) {
	if cfg.Identity == nil {
		return nil, errors.New("node: no Identity")
	}
	n := &Node{AddressBook: &SharedAddressBook{}, own: cfg.Identity.Peer()}
	n.AddressBook.Store(&AddressBook{Servers: map[string]string{}, Paths: map[string][]Path{}})
	errs := []error{cfg.Identity.VerifySubject(tlsutil.RoleServer, n.own.Node, n.own.DC)}
	for _, dc := range slices.Sorted(maps.Keys(cfg.Gateways)) {
		errs = append(errs, n.SetGateways(dc, cfg.Gateways[dc]...))
	}
	var err1, err2, err3, err4 error
	n.Dialer, err1 = NewDialer(DialerConfig{Identity: cfg.Identity, AddressBook: n.AddressBook, Logger: cfg.Logger})
	n.Mux, err2 = NewMux(MuxConfig{Identity: cfg.Identity, Logger: cfg.Logger})
	if errs = append(errs, err1, err2); err1 == nil && err2 == nil {
		n.Tunnel, err3 = NewTunnel(TunnelConfig{
			Identity: cfg.Identity, Dialer: n.Dialer, Mux: n.Mux, Advertise: cfg.Advertise, Logger: cfg.Logger,
		})
		n.Prober, err4 = NewProber(ProberConfig{Dialer: n.Dialer, Logger: cfg.Logger})
	}
	if err := errors.Join(append(errs, err3, err4)...); err != nil {
		return nil, fmt.Errorf("node: %w", err)
	}
	return n, nil
}

// Name is what the WAN pool calls this node: <node>.<dc>, as its certificate says. memberlist and serf must be given it.
func (n *Node) Name() string { return n.Tunnel.name() }

// Run accepts on ln, which is reached at the Advertise address, and carries what the pools send, until ctx ends. It then closes ln
// and all connections, waits for all that it started, and returns nil; an error of ln that does not pass is returned. It
// blocks. Call it once, before the pools join anybody, and end it last: a pool says goodbye through it.
func (n *Node) Run(ctx context.Context, ln net.Listener) error {
	group, ctx := errgroup.WithContext(ctx)
	group.Go(func() error { return n.Mux.Run(ctx, ln) })
	group.Go(func() error { return n.Tunnel.Run(ctx) })
	group.Go(func() error { return n.Prober.Run(ctx) })
	return group.Wait()
}

// SetServer enters in the book where a member of the own datacenter is (host:port), as the pools' events tell it; "" forgets
// it. What reaches this node for that member is handed on to there; without an entry it is dropped. member is the name that
// a pool has: <node>.<dc> or <node>. Members of other datacenters are ignored, so every event may be passed on. Enter those that the
// program is told to join before Run: gateways bring what is for them as soon as this node listens, and until its pool has joined,
// no event tells where they are.
func (n *Node) SetServer(member, addr string) {
	node, dc, wan := strings.Cut(strings.ToLower(member), ".")
	if wan && dc != n.own.DC || tlsutil.CheckLabel(node) != nil {
		return
	}
	n.change(func(r *AddressBook) {
		r.Servers = maps.Clone(r.Servers)
		if r.Servers[node] = addr; addr == "" {
			delete(r.Servers, node)
		}
	})
}

// SetGateways replaces the addresses (host:port; at a tie the one named earlier goes first) of the gateways that lead to another datacenter;
// none makes it unreachable. Connections over a gateway that is no longer named move to one that is.
func (n *Node) SetGateways(dc string, addrs ...string) error {
	errs := []error{tlsutil.CheckLabel(dc)}
	if dc == n.own.DC {
		errs = append(errs, errors.New("this is the own datacenter, whose nodes are dialed directly"))
	}
	var hops []Path
	for _, addr := range addrs {
		if _, port, err := net.SplitHostPort(addr); err != nil || port == "" || port == "0" {
			errs = append(errs, fmt.Errorf("%q is no host:port", addr))
		}
		hops = append(hops, Path{Addr: addr, Via: viaConfigured})
	}
	if err := errors.Join(errs...); err != nil {
		return fmt.Errorf("gateways to datacenter %q: %w", dc, err)
	}
	n.change(func(r *AddressBook) {
		r.Paths = maps.Clone(r.Paths)
		if r.Paths[dc] = hops; len(hops) == 0 {
			delete(r.Paths, dc)
		}
	})
	return nil
}

// change stores what f makes of a copy of the routes; f copies the maps that it changes.
func (n *Node) change(f func(*AddressBook)) {
	n.mu.Lock()
	defer n.mu.Unlock()
	r := *n.AddressBook.Load()
	f(&r)
	n.AddressBook.Store(&r)
}

// AnyServer is what a pool joins to reach another datacenter: any server of it that answers. It has the form that memberlist
// and serf want; the address in it is never dialed (RFC 5737), because the way there is a gateway.
func AnyServer(dc string) string { return "*." + dc + "/192.0.2.1:8300" }
