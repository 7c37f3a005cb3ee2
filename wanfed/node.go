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
	// Identity is the server certificate of the node. It names the node and its
	// datacenter. Required.
	Identity *tlsutil.Identity
	// Advertise is the ip:port at which gateways and the other nodes of this
	// datacenter dial this node. Required.
	Advertise string
	// Gateways lists gateway addresses (host:port) by the name of the
	// datacenter that the gateways reach. See Node.SetGateways.
	Gateways map[string][]string
	Logger   *slog.Logger // default: no log
}

// Node is a tunnel endpoint for programs without special needs: an address
// book, a Dialer, a Prober, a Mux and a Tunnel, wired together. Programs use
// its fields: Tunnel.Transport for memberlist and serf, Mux.Handle and
// Dialer.Dial for their own protocols, Tunnel.Stats for metrics. The fields do
// not change after NewNode. All methods are safe for concurrent use.
type Node struct {
	AddressBook *SharedAddressBook // written only by SetServer and SetGateways
	Dialer      *Dialer
	Prober      *Prober
	Mux         *Mux
	Tunnel      *Tunnel

	self tlsutil.Peer

	mu sync.Mutex // guards changes of AddressBook
}

// viaConfigured is the Path.Via of the addresses of SetGateways.
const viaConfigured = "configured address"

// NewNode checks cfg, reports all faults at once, and builds the parts. It
// starts nothing. A Node needs no Close.
func NewNode(cfg NodeConfig) (*Node, error) {
	if cfg.Identity == nil {
		return nil, errors.New("node: Identity is missing")
	}
	n := &Node{AddressBook: &SharedAddressBook{}, self: cfg.Identity.Peer()}
	n.AddressBook.Store(&AddressBook{Servers: map[string]string{}, Paths: map[string][]Path{}})
	errs := []error{cfg.Identity.VerifySubject(tlsutil.RoleServer, n.self.Node, n.self.DC)}
	for _, dc := range slices.Sorted(maps.Keys(cfg.Gateways)) {
		errs = append(errs, n.SetGateways(dc, cfg.Gateways[dc]...))
	}
	var err error
	n.Dialer, err = NewDialer(DialerConfig{Identity: cfg.Identity, AddressBook: n.AddressBook, Logger: cfg.Logger})
	errs = append(errs, err)
	n.Mux, err = NewMux(MuxConfig{Identity: cfg.Identity, Logger: cfg.Logger})
	errs = append(errs, err)
	if n.Dialer != nil && n.Mux != nil {
		n.Tunnel, err = NewTunnel(TunnelConfig{
			Identity: cfg.Identity, Dialer: n.Dialer, Mux: n.Mux, Advertise: cfg.Advertise, Logger: cfg.Logger,
		})
		errs = append(errs, err)
		n.Prober, err = NewProber(ProberConfig{Dialer: n.Dialer, Logger: cfg.Logger})
		errs = append(errs, err)
	}
	if err := errors.Join(errs...); err != nil {
		return nil, fmt.Errorf("node: %w", err)
	}
	return n, nil
}

// Name returns the name of this node in the WAN pool, <node>.<dc>, from its
// certificate. memberlist and serf must use this name.
func (n *Node) Name() string { return n.Tunnel.name() }

// Run accepts connections on ln and carries the traffic of the pools until ctx
// ends. It then closes ln and all connections, waits for its goroutines and
// returns nil. If ln fails permanently, Run returns the error. ln must be
// reachable at the Advertise address. Call Run once, before a pool joins. End
// Run after the pools have left, because it carries their leave messages.
func (n *Node) Run(ctx context.Context, ln net.Listener) error {
	group, ctx := errgroup.WithContext(ctx)
	group.Go(func() error { return n.Mux.Run(ctx, ln) })
	group.Go(func() error { return n.Tunnel.Run(ctx) })
	group.Go(func() error { return n.Prober.Run(ctx) })
	return group.Wait()
}

// SetServer sets the address (host:port) of a member of the local datacenter in
// the address book. The address "" removes the member. Call SetServer for every
// member event of the pools, with the name that the pool uses: <node>.<dc> or
// <node>. SetServer ignores members of other datacenters.
//
// Gateways send traffic for any server of the datacenter to this node. The node
// relays the traffic to the address set here, and drops traffic for a server
// without an address. Before Run, set the servers that the program joins: no
// event reports their addresses before the pool has joined.
func (n *Node) SetServer(member, addr string) {
	node, dc, wan := strings.Cut(strings.ToLower(member), ".")
	if wan && dc != n.self.DC || tlsutil.CheckLabel(node) != nil {
		return
	}
	n.updateBook(func(b *AddressBook) {
		b.Servers = maps.Clone(b.Servers)
		if b.Servers[node] = addr; addr == "" {
			delete(b.Servers, node)
		}
	})
}

// SetGateways replaces the gateway addresses (host:port) of another datacenter.
// The Dialer dials working and fast addresses first, and of equal addresses the
// earlier one. Without addresses the datacenter is unreachable. Connections
// over a removed gateway migrate to a listed gateway.
func (n *Node) SetGateways(dc string, addrs ...string) error {
	errs := []error{tlsutil.CheckLabel(dc)}
	if dc == n.self.DC {
		errs = append(errs, errors.New("this is the local datacenter; its nodes are dialed directly"))
	}
	var paths []Path
	for _, addr := range addrs {
		if _, port, err := net.SplitHostPort(addr); err != nil || port == "" || port == "0" {
			errs = append(errs, fmt.Errorf("%q is not host:port", addr))
		}
		paths = append(paths, Path{Addr: addr, Via: viaConfigured})
	}
	if err := errors.Join(errs...); err != nil {
		return fmt.Errorf("gateways to datacenter %q: %w", dc, err)
	}
	n.updateBook(func(b *AddressBook) {
		b.Paths = maps.Clone(b.Paths)
		if b.Paths[dc] = paths; len(paths) == 0 {
			delete(b.Paths, dc)
		}
	})
	return nil
}

// updateBook applies f to a copy of the address book and stores the copy. f
// must clone a map before it changes the map.
func (n *Node) updateBook(f func(*AddressBook)) {
	n.mu.Lock()
	defer n.mu.Unlock()
	b := *n.AddressBook.Load()
	f(&b)
	n.AddressBook.Store(&b)
}

// AnyServer returns an address for the Join of memberlist and serf: any server
// of another datacenter. The IP address in the result is from RFC 5737 and is
// never dialed. Gateways lead to the datacenter.
func AnyServer(dc string) string { return "*." + dc + "/192.0.2.1:8300" }
