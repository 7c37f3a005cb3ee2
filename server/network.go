// SPDX-License-Identifier: MPL-2.0

package server

import (
	"context"
	"log/slog"
	"maps"
	"net"
	"net/netip"
	"slices"
	"time"

	"github.com/hashicorp/raft"
	"golang.org/x/sync/errgroup"

	"github.com/wanfed/wanfed/api/pb"
	"github.com/wanfed/wanfed/dcrpc"
	"github.com/wanfed/wanfed/tlsutil"
	"github.com/wanfed/wanfed/wanfed"
)

// network carries all bytes between this server and others: the TLS port, the
// tunnel to other datacenters, and gRPC connections to other servers.
type network struct {
	dc        string
	advertise netip.AddrPort // the address that other servers dial
	identity  *tlsutil.Identity
	book      *wanfed.SharedAddressBook
	dialer    *wanfed.Dialer
	prober    *wanfed.Prober
	mux       *wanfed.Mux
	headers   *headerSources // gateways that may send PROXY headers
	tunnel    *wanfed.Tunnel
	calls     *dcrpc.Client
}

// newNetwork builds the network. The argument epoch returns the known epoch of
// the primary. learn records an epoch that a server of dc has sent. reconnected is
// TunnelConfig.Reconnected.
func newNetwork(
	cfg Config, id *tlsutil.Identity, advertise netip.AddrPort, epoch func() string, learn func(epoch, dc string),
	reconnected func(dc string), logger *slog.Logger,
) (_ *network, err error) {
	n := &network{dc: cfg.DC, advertise: advertise, identity: id, book: &wanfed.SharedAddressBook{}, headers: newHeaderSources()}
	n.dialer, err = wanfed.NewDialer(wanfed.DialerConfig{
		Identity: id, AddressBook: n.book, Mode: wanfed.Mode(cfg.MeshGatewayMode), Logger: logger,
	})
	if err != nil {
		return nil, err
	}
	if n.prober, err = wanfed.NewProber(wanfed.ProberConfig{Dialer: n.dialer, Logger: logger}); err != nil {
		return nil, err
	}
	n.mux, err = wanfed.NewMux(wanfed.MuxConfig{
		Identity: id, ProxyFrom: cfg.ProxyFrom, GatewayAt: n.headers.contain, OnPeer: n.peerConnected, Logger: logger,
	})
	if err != nil {
		return nil, err
	}
	n.tunnel, err = wanfed.NewTunnel(wanfed.TunnelConfig{
		Identity: id, Dialer: n.dialer, Mux: n.mux, Advertise: advertise.String(), Reconnected: reconnected, Logger: logger,
	})
	if err != nil {
		return nil, err
	}
	n.calls = dcrpc.New(dcrpc.Config{
		DC: cfg.DC, PrimaryDC: cfg.PrimaryDC, Tunnel: n.tunnel, Dialer: n.dialer, Book: n.book,
		Epoch: epoch, Learn: learn,
	})
	return n, nil
}

// run serves the TLS port until ctx ends.
func (n *network) run(ctx context.Context, ln net.Listener) error {
	g, ctx := errgroup.WithContext(ctx)
	g.Go(func() error { return n.mux.Run(ctx, ln) })
	g.Go(func() error { return n.tunnel.Run(ctx) })
	g.Go(func() error { return n.identity.Run(ctx) })
	g.Go(func() error { return n.calls.Run(ctx) })
	return g.Wait()
}

// peerConnected is called for each connection that a peer has opened.
func (n *network) peerConnected(peer tlsutil.Peer) {
	if peer.Role == tlsutil.RoleServer {
		n.calls.PeerConnected(peer.DC)
	}
}

// grpcListeners returns the listeners of gRPC connections: one for the TLS
// port, and one for the sessions of servers of other datacenters.
func (n *network) grpcListeners() []net.Listener {
	return []net.Listener{n.mux.Listener(wanfed.ProtoGRPC, tlsutil.Roles, false), n.tunnel.GRPCListener()}
}

func (n *network) raftStream() raft.StreamLayer {
	return raftStream{n.mux.Listener(wanfed.ProtoRaft, []tlsutil.Role{tlsutil.RoleServer}, true), n.dc, n.dialer}
}

// ReplicationClient implements replication.Remote.
func (n *network) ReplicationClient(dc string) (pb.ReplicationServiceClient, error) {
	return pb.NewReplicationServiceClient(n.calls.Reader(dc)), nil
}

// Known implements replication.Remote.
func (n *network) Known(dc string) bool { return len(n.book.Load().Paths[dc]) > 0 }

// PathsChanged implements replication.Remote.
func (n *network) PathsChanged() <-chan struct{} { return n.book.Changed() }

// Disconnect implements replication.Remote.
func (n *network) Disconnect(dc string) { n.calls.Disconnect(dc) }

// raftStream carries Raft over the TLS port. The addresses in the Raft
// configuration are node names. The address book has the IP addresses, so a
// server may change its IP address.
type raftStream struct {
	net.Listener
	dc     string
	dialer *wanfed.Dialer
}

// Dial implements raft.StreamLayer.
func (s raftStream) Dial(node raft.ServerAddress, timeout time.Duration) (net.Conn, error) {
	ctx, cancel := context.WithTimeout(context.Background(), timeout)
	defer cancel()
	c, err := s.dialer.Dial(ctx, wanfed.Target{DC: s.dc, Node: string(node)}, wanfed.ProtoRaft)
	if err != nil {
		return nil, err // not c: an interface with a nil pointer is not nil
	}
	return c, nil
}

// datacenters returns the names of the datacenters that have a path.
func (n *network) datacenters() []string { return slices.Collect(maps.Keys(n.book.Load().Paths)) }
