// SPDX-License-Identifier: MPL-2.0

package server

import (
	"context"
	"fmt"
	"log/slog"
	"net/http"
	"path/filepath"
	"strconv"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"
	"google.golang.org/grpc"
	"google.golang.org/grpc/status"

	"github.com/wanfed/wanfed/api/pb"
	"github.com/wanfed/wanfed/catalog"
	"github.com/wanfed/wanfed/federation"
	"github.com/wanfed/wanfed/gossip"
	"github.com/wanfed/wanfed/internal/version"
	"github.com/wanfed/wanfed/replication"
	"github.com/wanfed/wanfed/resource"
	"github.com/wanfed/wanfed/resource/resourcehttp"
	"github.com/wanfed/wanfed/server/httpapi"
	"github.com/wanfed/wanfed/server/keyring"
	"github.com/wanfed/wanfed/server/operator"
	"github.com/wanfed/wanfed/server/rpc"
	"github.com/wanfed/wanfed/tlsutil"
	"github.com/wanfed/wanfed/wanfed"
)

// buildKeys opens the keyring of the data directory, or creates one.
func (p *parts) buildKeys() (err error) {
	var initial *gossip.Key
	if p.cfg.EncryptFile != "" {
		key, err := gossip.ReadKeyFile(p.cfg.EncryptFile, p.logger)
		if err != nil {
			return err
		}
		initial = &key
	}
	p.keys, err = gossip.OpenKeyringStore(gossip.KeyringStoreConfig{
		Path: filepath.Join(p.cfg.DataDir, "keyring.json"), InitialKey: initial, Logger: p.logger,
	})
	return err
}

func (p *parts) buildKeyring() error {
	p.keyring = keyring.New(keyring.Config{
		DC: p.cfg.DC, Node: p.cfg.Node, PrimaryDC: p.cfg.PrimaryDC,
		AcceptsPlaintext: p.cfg.GossipAcceptPlain, SendsPlaintext: p.cfg.GossipSendPlain,
		RetryJoin: p.cfg.RetryJoin, Store: p.keys, LAN: p.lan, WAN: p.wan, RaftPeers: p.store.Peers,
		Book: p.book, Dialer: p.dialer, Calls: p.calls, Logger: p.logger,
	})
	return nil
}

func (p *parts) buildPools() (err error) {
	lanTags := p.tags()
	lanTags[tagExpect] = strconv.Itoa(p.cfg.BootstrapExpect)
	lanTags[federation.TagPrimary] = p.cfg.PrimaryDC
	lanTags[tagOps] = strconv.Itoa(resource.OpsVersion)
	if p.store.HasState() {
		lanTags[tagRaft] = "1"
	}
	p.lan, err = gossip.New(gossip.Config{
		Kind: wanfed.PoolLAN, Name: p.cfg.Node, Tags: lanTags,
		Transport: p.tunnel.Transport(wanfed.PoolLAN), Advertise: p.adv,
		Admit: func(m gossip.Member) error {
			if dc := m.Tags[federation.TagDC]; dc != p.cfg.DC {
				return fmt.Errorf("LAN member %s says its datacenter is %q, not %q", m.Name, dc, p.cfg.DC)
			}
			return nil
		},
		Keyring: p.keys, AcceptPlaintext: p.cfg.GossipAcceptPlain, SendPlaintext: p.cfg.GossipSendPlain,
		Logger: p.logger.With("pool", "lan"),
	})
	if err != nil {
		return err
	}
	p.disputes = federation.NewPrimaryConflicts(p.cfg.DC, p.cfg.PrimaryDC, p.logger)
	wanTags := p.tags()
	wanTags[federation.TagPrimary] = p.cfg.PrimaryDC
	p.wan, err = gossip.New(gossip.Config{
		Kind: wanfed.PoolWAN, Name: federation.WANName(p.cfg.Node, p.cfg.DC), Tags: wanTags,
		Transport: p.tunnel.Transport(wanfed.PoolWAN), Advertise: p.adv,
		Admit: federation.Admit(p.cfg.DC, p.cfg.PrimaryDC, p.disputes.Record), GroupOf: federation.DatacenterOf,
		Keyring: p.keys, AcceptPlaintext: p.cfg.GossipAcceptPlain, SendPlaintext: p.cfg.GossipSendPlain,
		Logger: p.logger.With("pool", "wan"),
	})
	if err != nil {
		return err
	}
	p.hinter, err = federation.NewGatewayTagger(federation.GatewayTaggerConfig{Backend: p.store, WAN: p.wan, Tags: wanTags, Logger: p.logger})
	if err != nil {
		return err
	}
	p.operator = operator.New(operator.Config{
		DC: p.cfg.DC, Node: p.cfg.Node, Store: p.store, LAN: p.lan,
		Expect: p.cfg.BootstrapExpect, DeadAfter: p.cfg.DeadServerAfter, Logger: p.logger,
	})
	p.group = &group{
		node: p.cfg.Node, expect: p.cfg.BootstrapExpect, join: p.cfg.RetryJoin, tags: lanTags,
		raft: p.store, lan: p.lan, logger: p.logger,
	}
	return nil
}

// tags are what both pools say of this server. Those that Consul's servers look for have the values they accept.
func (p *parts) tags() map[string]string {
	return map[string]string{
		federation.TagRole: federation.RoleValue, federation.TagDC: p.cfg.DC, federation.TagNodeID: p.nodeID,
		federation.TagPort: strconv.Itoa(int(p.adv.Port())), federation.TagBuild: version.Version + ":" + version.Get().Commit,
		"segment": "", "vsn": "2", "vsn_min": "2", "vsn_max": "3", "raft_vsn": "3",
		"use_tls": "1", "acls": "0", "ft_fs": "1", "ft_si": "1",
	}
}

func (p *parts) buildRecords() (err error) {
	p.caughtUp = make(chan struct{})
	p.addressBook, err = federation.NewAddressBookUpdater(federation.AddressBookUpdaterConfig{
		DC: p.cfg.DC, PrimaryDC: p.cfg.PrimaryDC, Domain: p.cfg.Domain, PrimaryGateways: p.cfg.PrimaryGateways,
		Backend: p.store, LAN: p.lan, WAN: p.wan, Ready: p.caughtUp, File: filepath.Join(p.cfg.DataDir, "addresses.json"),
		Book: p.book, Paths: p.dialer.Paths, Logger: p.logger,
	})
	if err != nil {
		return err
	}
	p.joiner, err = federation.NewJoiner(federation.JoinerConfig{
		DC: p.cfg.DC, Node: p.cfg.Node, LAN: p.lan, WAN: p.wan, Book: p.book, WaitReachable: p.reach, Logger: p.logger,
	})
	if err != nil {
		return err
	}
	p.gateways, err = catalog.NewGateways(catalog.GatewaysConfig{Backend: p.store, DC: p.cfg.DC, Logger: p.logger})
	if err != nil {
		return err
	}
	p.primacy, err = replication.NewPrimaryManager(replication.PrimaryManagerConfig{
		DC: p.cfg.DC, ConfiguredPrimary: p.cfg.PrimaryDC, Backend: p.store, Registry: p.registry,
		Servers: localServers{p}, Remote: remoteServers{p}, Logger: p.logger,
	})
	if err != nil {
		return err
	}
	p.antiEntropy, err = replication.NewAntiEntropy(replication.AntiEntropyConfig{
		DC: p.cfg.DC, Backend: p.store, Apply: p.apply, PathsChanged: p.book.Changed, Logger: p.logger,
	})
	return err
}

// reach asks any server of a datacenter whether it is there, over the connection that other calls use too. It waits until
// there is one, or ctx ends.
func (p *parts) reach(ctx context.Context, dc string) error {
	return p.calls.Ping(ctx, dc)
}

// apply has the own federation state written in the primary.
func (p *parts) apply(ctx context.Context, s *pb.FederationState) error {
	if p.primacy.PrimaryDC() == p.cfg.DC {
		if err := p.primacy.Writable(); err != nil {
			return err
		}
		_, _, err := federation.Upsert(ctx, p.primacy.Fenced(p.store), s)
		return err
	}
	_, err := pb.NewFederationServiceClient(p.calls.Reader(p.primacy.PrimaryDC())).Apply(ctx, &pb.ApplyFederationStateRequest{
		Op: pb.ApplyFederationStateRequest_OP_UPSERT, State: s,
	}, grpc.WaitForReady(true))
	return err
}

func (p *parts) buildGRPC() error {
	fed, err := federation.NewService(federation.ServiceConfig{
		Backend: p.primacy.Fenced(p.store), DC: p.cfg.DC, PrimaryDC: p.cfg.PrimaryDC, Writable: p.primacy.Writable, Peer: rpc.Peer, Logger: p.logger,
		Alive: p.datacenterAlive,
		Connect: func(dc string) (pb.FederationServiceClient, error) {
			if _, known := p.book.Load().Paths[dc]; !known {
				return nil, fmt.Errorf("no path to datacenter %s: it is not in the address book", dc)
			}
			return pb.NewFederationServiceClient(p.calls.Reader(dc)), nil
		},
	})
	if err != nil {
		return err
	}
	p.routed, err = resource.NewForwardingBackend(p.cfg.Node, p.store, func(node string) (pb.StoreServiceClient, error) {
		cc, err := p.calls.Server(node)
		if err != nil {
			return nil, err
		}
		return pb.NewStoreServiceClient(cc), nil
	})
	if err != nil {
		return err
	}
	p.resources, err = resource.NewService(resource.ServiceConfig{
		Backend: p.primacy.Fenced(p.routed), Registry: p.registry, Peer: rpc.Peer,
		Primary: func() bool { return p.primacy.Writable() == nil },
		DC:      p.cfg.DC, PrimaryDC: p.cfg.PrimaryDC, Logger: p.logger,
		PrimaryClient: p.recordsOfPrimary,
	})
	if err != nil {
		return err
	}
	p.followed, err = replication.NewSource(replication.SourceConfig{
		Backend: p.routed, Registry: p.registry, Primary: p.primacy, Logger: p.logger,
	})
	if err != nil {
		return err
	}
	p.edge, err = rpc.New(rpc.Config{
		DC: p.cfg.DC, Node: p.cfg.Node, Domain: p.cfg.Domain, Leader: p.store, WriteError: p.store.WriteError,
		Connect:          p.calls.Server,
		RemoteWritesFrom: p.cfg.RemoteWritesFrom, Logger: p.logger,
	})
	if err != nil {
		return err
	}
	pb.RegisterFederationServiceServer(p.edge, fed)
	resource.RegisterService(p.edge, p.resources)
	pb.RegisterStoreServiceServer(p.edge, resource.NewStoreService(p.store))
	pb.RegisterReplicationServiceServer(p.edge, p.followed)
	pb.RegisterKeyringServiceServer(p.edge, p.keyring)
	pb.RegisterGatewayServiceServer(p.edge, &gatewayService{gateways: p.gateways, book: p.addressBook})
	pb.RegisterCheckServiceServer(p.edge, &checkService{resources: p.resources, reports: p.reports})
	pb.RegisterOperatorServiceServer(p.edge, p.operator)
	pb.RegisterServerServiceServer(p.edge, &serverService{query: func(ctx context.Context, req *pb.QueryRequest) (*pb.QueryResponse, error) {
		resp, err := httpapi.Serve(ctx, p.http.Handler, req)
		if err != nil {
			return nil, status.FromContextError(err).Err()
		}
		return resp, nil
	}, responses: p.edge.Responses()})
	if err := p.edge.RegisterIntrospection(); err != nil {
		return err
	}
	p.grpcLn = p.mux.Listener(wanfed.ProtoGRPC, tlsutil.Roles, false)
	return nil
}

func (p *parts) datacenterAlive(dc string) bool {
	for _, m := range p.wan.Members() {
		if _, mdc, err := federation.SplitWANName(m.Name); err == nil && mdc == dc && m.Alive() {
			return true
		}
	}
	return false
}

func (p *parts) buildHTTP() error {
	reg := prometheus.NewRegistry()
	if err := reg.Register(collector{p}); err != nil {
		return err
	}
	records, err := resourcehttp.New(resourcehttp.Config{DC: p.cfg.DC, Registry: p.registry, Client: p.recordsOf})
	if err != nil {
		return err
	}
	h, err := httpapi.New(httpapi.Config{
		DC: p.cfg.DC, Cluster: source{p}, Logger: p.logger,
		Metrics: promhttp.HandlerFor(prometheus.Gatherers{prometheus.DefaultGatherer, reg}, promhttp.HandlerOpts{}),
		Names:   p.identity.Leaf().DNSNames, Peer: p.httpPeer, Resources: p.resources, Backend: p.routed,
		Node: p.cfg.Node, Address: p.adv.Addr().String(), Report: p.report, API: records,
	})
	if err != nil {
		return err
	}
	p.http = &http.Server{
		Handler: h, MaxHeaderBytes: rpc.MaxHeaders, ReadHeaderTimeout: 5 * time.Second, IdleTimeout: 2 * time.Minute,
		ErrorLog: slog.NewLogLogger(p.logger.With("component", "http").Handler(), slog.LevelWarn),
	}
	p.httpMux, err = wanfed.NewMux(wanfed.MuxConfig{
		Identity: p.identity, MaxPerPeer: httpPerPeer(), Logger: p.logger.With("component", "http"),
	})
	if err != nil {
		return err
	}
	_, onlyTLS, _ := parseHTTPAddr(p.cfg.HTTPAddr)
	p.httpConns = p.httpMux.HTTPListener(tlsutil.Roles, !onlyTLS)
	return nil
}
