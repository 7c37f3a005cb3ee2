// SPDX-License-Identifier: MPL-2.0

package sim

import (
	"context"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"time"

	"golang.org/x/sync/errgroup"
	"google.golang.org/grpc"
	"google.golang.org/grpc/health"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/keepalive"

	"github.com/wanfed/wanfed/api"
	"github.com/wanfed/wanfed/api/pb"
	"github.com/wanfed/wanfed/federation"
	"github.com/wanfed/wanfed/gossip"
	"github.com/wanfed/wanfed/replication"
	"github.com/wanfed/wanfed/resource"
	"github.com/wanfed/wanfed/tlsutil"
	"github.com/wanfed/wanfed/wanfed"
)

// server is one simulated server. It has the parts that package server
// assembles, except Raft, HTTP and the gRPC connections to most datacenters.
// The servers of a datacenter share a store in memory. Each server has one gRPC
// connection, to the primary.
type server struct {
	site *site
	name string
	host *host

	book     *wanfed.SharedAddressBook
	dialer   *wanfed.Dialer
	mux      *wanfed.Mux
	tunnel   *wanfed.Tunnel
	lan, wan *gossip.Pool

	addressBook *federation.AddressBookUpdater
	joiner      *federation.Joiner

	toPrimary *grpc.ClientConn // nil in the primary
	grpc      *grpc.Server
	grpcLn    net.Listener
	source    func(context.Context) error   // serves followers; nil outside the primary
	leading   []func(context.Context) error // tasks of the leader, which is the first server of each datacenter

	stop context.CancelFunc
	run  *errgroup.Group
}

var discardLogger = slog.New(slog.DiscardHandler)

func newServer(w *world, s *site, name, addr string) (*server, error) {
	v := &server{site: s, name: name, host: newHost(w.net, addr), book: &wanfed.SharedAddressBook{}}
	id := w.ca.Identity(w.t, tlsutil.RoleServer, name, s.dc)
	var err error
	v.dialer, err = wanfed.NewDialer(wanfed.DialerConfig{Identity: id, AddressBook: v.book, DialTCP: v.host.dial})
	if err != nil {
		return nil, err
	}
	if v.mux, err = wanfed.NewMux(wanfed.MuxConfig{Identity: id}); err != nil {
		return nil, err
	}
	v.tunnel, err = wanfed.NewTunnel(wanfed.TunnelConfig{
		Identity: id, Dialer: v.dialer, Mux: v.mux, Advertise: addr, MaxIdleLinks: *links,
	})
	if err != nil {
		return nil, err
	}
	if err := v.buildPools(); err != nil {
		return nil, err
	}
	return v, v.buildFederation(w)
}

func (v *server) buildPools() (err error) {
	tags := v.tags()
	adv := netip.MustParseAddrPort(v.host.addr.String())
	v.lan, err = gossip.New(gossip.Config{
		Kind: wanfed.PoolLAN, Name: v.name, Tags: tags, Transport: v.tunnel.Transport(wanfed.PoolLAN),
		Advertise: adv, Logger: discardLogger,
	})
	if err != nil {
		return err
	}
	v.wan, err = gossip.New(gossip.Config{
		Kind: wanfed.PoolWAN, Name: federation.WANName(v.name, v.site.dc), Tags: tags,
		Transport: v.tunnel.Transport(wanfed.PoolWAN), Advertise: adv, Logger: discardLogger,
		Admit: federation.Admit(v.site.dc, primary, func(string) string { return "" }, nil),
	})
	return err
}

// tags returns tags with the sizes of a real server's.
func (v *server) tags() map[string]string {
	return map[string]string{
		federation.TagRole: federation.RoleValue, federation.TagDC: v.site.dc, federation.TagPrimary: primary,
		federation.TagNodeID: "2b3c9b5e-6a7f-4c1d-9e8f-0a1b2c3d4e5f", federation.TagPort: "8300",
		federation.TagBuild: "0.1.0:0123456789ab",
		"segment":           "", "vsn": "2", "vsn_min": "2", "vsn_max": "3", "raft_vsn": "3",
		"use_tls": "1", "acls": "0", "ft_fs": "1", "ft_si": "1",
	}
}

// runTags keeps the gateway tag up to date.
func (v *server) runTags(ctx context.Context) error {
	epoch := federation.EpochTag{Type: federation.GroupType, Value: func() string { return "" }}
	return federation.RunGatewayTags(ctx, federation.GatewayTagsConfig{
		Backend: v.site.store, WAN: v.wan, Tags: v.tags(), Epoch: epoch, Logger: discardLogger,
	})
}

func (v *server) buildFederation(w *world) (err error) {
	s := v.site
	ready := make(chan struct{})
	close(ready)
	cfg := federation.AddressBookUpdaterConfig{
		DC: s.dc, PrimaryDC: primary, Domain: tlsutil.DefaultDomain, Backend: s.store, LAN: v.lan, WAN: v.wan,
		Ready: ready,
		File:  filepath.Join(w.dir, fmt.Sprintf("%s-%s.json", v.name, s.dc)), Book: v.book, Logger: discardLogger,
	}
	if s.dc != primary {
		cfg.PrimaryGateways = []string{w.sites[0].gateway.wan}
	}
	if v.addressBook, err = federation.NewAddressBookUpdater(cfg); err != nil {
		return err
	}
	v.joiner, err = federation.NewJoiner(federation.JoinerConfig{
		DC: s.dc, Node: v.name, LAN: v.lan, WAN: v.wan, Book: v.book, WaitReachable: v.reach, Logger: discardLogger,
	})
	if err != nil {
		return err
	}
	return v.buildReplication(w)
}

func (v *server) buildReplication(w *world) (err error) {
	s := v.site
	apply := func(ctx context.Context, st *pb.FederationState) error {
		_, _, err := federation.Upsert(ctx, s.store, st)
		return err
	}
	v.grpc = grpc.NewServer(grpc.Creds(api.EstablishedTLS()), grpc.ReadBufferSize(api.ReadBufferSize),
		grpc.KeepaliveParams(keepalive.ServerParameters{Time: 20 * time.Second, Timeout: 10 * time.Second}))
	healthpb.RegisterHealthServer(v.grpc, health.NewServer())
	manager, err := replication.NewPrimaryManager(replication.PrimaryManagerConfig{
		DC: s.dc, ConfiguredPrimary: primary, Backend: s.store, Registry: w.registry, Logger: discardLogger,
		Servers: equalServers{}, Remote: v, DataDir: os.TempDir(),
		Identity: w.ca.Identity(w.t, tlsutil.RoleServer, v.name, s.dc),
	})
	if err != nil {
		return err
	}
	if s.dc == primary {
		src := replication.NewSource(manager, s.store)
		pb.RegisterReplicationServiceServer(v.grpc, src)
		v.source = src.Run
		fed, err := federation.NewService(federation.ServiceConfig{
			Backend: s.store, DC: s.dc, PrimaryDC: primary, Logger: discardLogger, Peer: peerOf,
			Decide:  func(context.Context, resource.Access) error { return nil }, // the callers are servers
			Alive:   func(string) bool { return true },
			Connect: func(string) (pb.FederationServiceClient, error) { return nil, errNoRoute },
		})
		if err != nil {
			return err
		}
		pb.RegisterFederationServiceServer(v.grpc, fed)
	} else {
		v.toPrimary, err = api.NewGRPCClient(func(ctx context.Context) (net.Conn, error) {
			return v.dialer.Dial(ctx, wanfed.Target{DC: primary}, wanfed.ProtoGRPC)
		})
		if err != nil {
			return err
		}
		apply = func(ctx context.Context, st *pb.FederationState) error {
			_, err := pb.NewFederationServiceClient(v.toPrimary).Apply(ctx, &pb.ApplyFederationStateRequest{
				Op: pb.ApplyFederationStateRequest_OP_UPSERT, State: st,
			}, grpc.WaitForReady(true))
			return err
		}
	}
	v.leading = append(v.leading, manager.RunLeader)
	up, err := replication.NewAntiEntropy(replication.AntiEntropyConfig{
		DC: s.dc, Backend: s.store, Apply: apply, PathsChanged: v.book.Changed, Logger: discardLogger,
	})
	if err != nil {
		return err
	}
	v.leading = append(v.leading, up.Run, s.monitor.Run)
	servers := []tlsutil.Role{tlsutil.RoleServer}
	v.grpcLn = v.mux.Listener(wanfed.ProtoGRPC, servers, false)
	return nil
}

// equalServers implements replication.Servers for servers with equal
// configurations.
type equalServers struct{}

func (equalServers) ConfiguredPrimaries() (byNode map[string]string, unknown []string) {
	return nil, nil
}
func (equalServers) Changed() <-chan struct{} { return nil }

// ReplicationClient implements replication.Remote.
func (v *server) ReplicationClient(string) (pb.ReplicationServiceClient, error) {
	return pb.NewReplicationServiceClient(v.toPrimary), nil
}

// Disconnect implements replication.Remote.
func (v *server) Disconnect(string) {}

// PathsChanged implements replication.Remote.
func (v *server) Known(dc string) bool { return len(v.book.Load().Paths[dc]) > 0 }

func (v *server) PathsChanged() <-chan struct{} { return v.book.Changed() }

// reach checks that a server of a datacenter responds.
func (v *server) reach(ctx context.Context, dc string) error {
	if dc == primary && v.toPrimary != nil {
		_, err := healthpb.NewHealthClient(v.toPrimary).Check(ctx, &healthpb.HealthCheckRequest{},
			grpc.WaitForReady(true))
		return err
	}
	c, err := v.dialer.Dial(ctx, wanfed.Target{DC: dc}, wanfed.ProtoGRPC)
	if err == nil {
		c.Close()
	}
	return err
}

// start runs all parts until stop is called.
func (v *server) start(leader bool) {
	ctx, stop := context.WithCancel(context.Background())
	v.stop = stop
	v.run, ctx = errgroup.WithContext(ctx)
	parts := []func(context.Context) error{
		func(ctx context.Context) error { return v.mux.Run(ctx, v.host) },
		v.tunnel.Run, v.lan.Run, v.wan.Run, v.addressBook.Run, v.joiner.Run, v.runTags, v.serveGRPC,
	}
	if leader {
		parts = append(parts, v.leading...)
	}
	if v.source != nil {
		parts = append(parts, v.source)
	}
	for _, f := range parts {
		v.run.Go(func() error { return f(ctx) })
	}
}

func (v *server) serveGRPC(ctx context.Context) error {
	stop := context.AfterFunc(ctx, v.grpc.Stop)
	defer stop()
	if err := v.grpc.Serve(v.grpcLn); err != nil && ctx.Err() == nil {
		return err
	}
	return nil
}

// wait waits for all goroutines of start. The caller must have stopped all
// servers, because a leave message waits for the others.
func (v *server) wait() error {
	err := v.run.Wait()
	if v.toPrimary != nil {
		v.toPrimary.Close()
	}
	return err
}
