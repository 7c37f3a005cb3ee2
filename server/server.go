// SPDX-License-Identifier: MPL-2.0

package server

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"path/filepath"
	"slices"
	"strconv"
	"sync/atomic"
	"syscall"
	"time"

	"golang.org/x/sync/errgroup"
	"google.golang.org/grpc"
	grpcstatus "google.golang.org/grpc/status"

	"github.com/wanfed/wanfed/api/pb"
	"github.com/wanfed/wanfed/catalog"
	"github.com/wanfed/wanfed/federation"
	"github.com/wanfed/wanfed/gossip"
	"github.com/wanfed/wanfed/internal/backoff"
	"github.com/wanfed/wanfed/internal/version"
	"github.com/wanfed/wanfed/replication"
	"github.com/wanfed/wanfed/resource"
	"github.com/wanfed/wanfed/resource/raftstore"
	"github.com/wanfed/wanfed/server/httpapi"
	"github.com/wanfed/wanfed/server/keyring"
	"github.com/wanfed/wanfed/server/operator"
	"github.com/wanfed/wanfed/server/rpc"
	"github.com/wanfed/wanfed/server/status"
	"github.com/wanfed/wanfed/tlsutil"
	"github.com/wanfed/wanfed/wanfed"
)

// stopTimeout is the maximum duration of open requests after the server begins
// to stop.
const stopTimeout = 2 * time.Second

// Run runs one datacenter server until ctx ends. Then it leaves the gossip
// pools, closes the store and returns nil. Any other end is an error: a fault
// in cfg, a port that is in use, a component that failed.
func Run(ctx context.Context, cfg Config) error {
	cfg = cfg.withDefaults()
	id, err := cfg.validate()
	if err != nil {
		return err
	}
	c, err := assemble(cfg, id)
	if err != nil {
		return err
	}
	err = c.run(ctx)
	return errors.Join(err, c.close())
}

// components are the parts that run starts and joins. assemble builds them in
// the order of the fields. It gives each component the earlier components that
// it needs.
type components struct {
	cfg     Config
	live    atomic.Pointer[LiveSettings]
	logger  *slog.Logger
	addrs   Addrs
	dataDir dataDir

	tlsListener, httpListener net.Listener

	network *network
	store   *raftstore.Store

	lan, wan  *gossip.Pool
	claims    *federation.Claims // of other datacenters' servers, in the primary
	claimant  *federation.Claimant
	conflicts *federation.PrimaryConflicts
	tagger    *federation.GatewayTagger
	contacts  *contacts
	group     *group
	operator  *operator.Service // also maintains the membership of the Raft group

	settings    *status.PrimarySettings
	manager     *replication.PrimaryManager
	primary     *status.PrimaryView
	leader      *leader
	loaded      chan struct{} // closed when the store has applied everything that its datacenter had committed
	addressBook *federation.AddressBookUpdater
	joiner      *federation.Joiner
	keyring     *keyring.Service

	registry  *resource.Registry
	strong    *resource.ForwardingBackend // the store, with strong reads and writes at any server
	resources *resource.Service
	source    *replication.Source // of replicas, in the primary
	remote    *remote
	edge      *rpc.Edge
	http      *httpServer
}

// assemble builds all components of a valid configuration. It binds both ports
// and opens the store, but serves nothing. assemble binds the ports first, so a
// server that cannot bind them leaves nothing on the disk.
func assemble(cfg Config, id *tlsutil.Identity) (_ *components, err error) {
	c := &components{cfg: cfg, logger: cfg.Logger.With("dc", cfg.DC, "node", cfg.Node), loaded: make(chan struct{})}
	c.live.Store(new(cfg.Live()))
	defer func() {
		if err != nil {
			err = errors.Join(err, c.close())
		}
	}()
	for _, build := range []func(*tlsutil.Identity) error{
		c.listen, c.openStore, c.buildGossip, c.buildFederation, c.buildResources, c.buildEdge, c.buildHTTP,
	} {
		if err := build(id); err != nil {
			return nil, err
		}
	}
	return c, nil
}

// close releases everything that assemble has opened. It is idempotent.
func (c *components) close() error {
	var errs []error
	for _, ln := range []net.Listener{c.tlsListener, c.httpListener} {
		if ln != nil {
			if err := ln.Close(); err != nil && !errors.Is(err, net.ErrClosed) {
				errs = append(errs, err)
			}
		}
	}
	if c.store != nil {
		errs = append(errs, c.store.Close())
	}
	return errors.Join(errs...)
}

// listen binds both ports and builds the network.
func (c *components) listen(id *tlsutil.Identity) (err error) {
	c.tlsListener, err = listen(net.JoinHostPort(c.cfg.Bind, strconv.Itoa(c.cfg.Port)), "--port or --bind")
	if err != nil {
		return err
	}
	advertise, err := c.cfg.advertiseAddr(c.tlsListener.Addr())
	if err != nil {
		return err
	}
	addr, useTLS, err := parseHTTPAddr(c.cfg.HTTPAddr)
	if err != nil {
		return err
	}
	if c.httpListener, err = listen(addr, "--http-addr"); err != nil {
		return err
	}
	scheme := "http"
	if useTLS {
		scheme = "https"
	}
	c.addrs = Addrs{Server: advertise.String(), HTTP: scheme + "://" + c.httpListener.Addr().String()}
	if c.dataDir, err = openDataDir(c.cfg.DataDir, c.cfg.DC); err != nil {
		return err
	}
	c.network, err = newNetwork(c.cfg, id, advertise, c.logger)
	return err
}

// listen returns a listener of addr. The argument flag is the name of the flag
// that selects another addr.
func listen(addr, flag string) (net.Listener, error) {
	ln, err := net.Listen("tcp", addr)
	switch {
	case errors.Is(err, syscall.EADDRINUSE):
		return nil, fmt.Errorf("port of %s is in use by another process: stop it (see: ss -ltnp), or choose another with %s", addr, flag)
	case errors.Is(err, syscall.EADDRNOTAVAIL):
		return nil, fmt.Errorf("%s is not an address of this machine: choose another with %s", addr, flag)
	case errors.Is(err, syscall.EACCES):
		return nil, fmt.Errorf("port of %s is not allowed for this user: choose one above 1023 with %s, or give the program CAP_NET_BIND_SERVICE", addr, flag)
	case err != nil:
		return nil, fmt.Errorf("listen on %s: %w", addr, err)
	}
	return ln, nil
}

func (c *components) openStore(*tlsutil.Identity) (err error) {
	if c.registry, err = newRegistry(); err != nil {
		return err
	}
	c.store, err = raftstore.Open(raftstore.Config{
		Node:       c.cfg.Node,
		Dir:        filepath.Join(c.cfg.DataDir, "raft"),
		Stream:     c.network.raftStream(),
		OpsVersion: func() (int, string) { return groupOpsVersion(c.lan, c.store) },
		Heartbeat:  c.cfg.heartbeat,
		Logger:     c.logger,
	})
	return err
}

func (c *components) buildGossip(*tlsutil.Identity) error {
	keys, err := openKeyring(c.cfg, c.logger)
	if err != nil {
		return err
	}
	pool := gossip.Config{
		Advertise: c.network.advertise, Keyring: keys,
		AcceptPlaintext: c.cfg.GossipAcceptPlain, SendPlaintext: c.cfg.GossipSendPlain,
	}
	lan, wan := pool, pool

	lan.Kind, lan.Name, lan.Transport = wanfed.PoolLAN, c.cfg.Node, c.network.tunnel.Transport(wanfed.PoolLAN)
	lan.Tags = c.memberTags()
	lan.Tags[tagExpect] = strconv.Itoa(c.cfg.BootstrapExpect)
	lan.Tags[tagOps] = strconv.Itoa(resource.OpsVersion)
	if c.store.HasState() {
		lan.Tags[tagRaft] = "1"
	}
	lan.Admit = func(m gossip.Member) error {
		if dc := m.Tags[federation.TagDC]; dc != c.cfg.DC {
			return fmt.Errorf("LAN member %s claims datacenter %q, not %q", m.Name, dc, c.cfg.DC)
		}
		return nil
	}
	lan.Logger = c.logger.With("pool", "lan")
	if c.lan, err = gossip.New(lan); err != nil {
		return err
	}

	c.conflicts = federation.NewPrimaryConflicts(c.cfg.DC, c.cfg.PrimaryDC, c.logger)
	wan.Kind, wan.Name = wanfed.PoolWAN, federation.WANName(c.cfg.Node, c.cfg.DC)
	wan.Transport = c.network.tunnel.Transport(wanfed.PoolWAN)
	wan.Tags = c.memberTags()
	wan.Admit, wan.GroupOf = federation.Admit(c.cfg.DC, c.cfg.PrimaryDC, c.stateGroup, c.conflicts.Record), federation.DatacenterOf
	c.claims = &federation.Claims{}
	c.claimant, err = federation.NewClaimant(federation.ClaimantConfig{
		DC: c.cfg.DC, Node: c.cfg.Node, Primary: func() string { return c.manager.PrimaryDC() }, Backend: c.store,
		Instance: c.dataDir.instance, PreviousInstance: c.dataDir.previousInstance, Address: c.network.advertise.String(),
		Client: func(dc string) pb.FederationServiceClient {
			return pb.NewFederationServiceClient(c.network.calls.Reader(dc))
		},
		PathsChanged: c.network.PathsChanged, Logger: c.logger,
	})
	if err != nil {
		return err
	}
	wan.Enabled = c.claimant.Enabled
	wan.Logger = c.logger.With("pool", "wan")
	if c.wan, err = gossip.New(wan); err != nil {
		return err
	}

	c.tagger, err = federation.NewGatewayTagger(federation.GatewayTaggerConfig{Backend: c.store, WAN: c.wan, Tags: wan.Tags, Logger: c.logger})
	if err != nil {
		return err
	}
	c.contacts = &contacts{
		node: c.cfg.Node, dc: c.cfg.DC, path: filepath.Join(c.cfg.DataDir, "servers.json"),
		lan: c.lan, wan: c.wan, peers: c.store.Peers, logger: c.logger,
	}
	c.contacts.load()
	c.group = &group{
		node: c.cfg.Node, expect: c.cfg.BootstrapExpect, join: c.retryJoin, tags: lan.Tags,
		raft: c.store, lan: c.lan, contacts: c.contacts, logger: c.logger,
	}
	c.operator = operator.New(operator.Config{
		DC: c.cfg.DC, Node: c.cfg.Node, Store: c.store, LAN: c.lan,
		Expect: c.cfg.BootstrapExpect, DeadAfter: func() time.Duration { return c.live.Load().DeadServerAfter }, Logger: c.logger,
	})
	c.keyring = keyring.New(keyring.Config{
		DC: c.cfg.DC, Node: c.cfg.Node, PrimaryDC: c.cfg.PrimaryDC,
		AcceptsPlaintext: c.cfg.GossipAcceptPlain, SendsPlaintext: c.cfg.GossipSendPlain,
		RetryJoin: c.retryJoin, Servers: c.contacts.known, Store: keys, LAN: c.lan, WAN: c.wan, RaftPeers: c.store.Peers,
		Book: c.network.book, Dialer: c.network.dialer, Calls: c.network.calls, Logger: c.logger,
	})
	return nil
}

// disconnect closes the connections to a datacenter whose name another Raft group
// has taken. It does so again later, because the local gateways may route to the
// earlier datacenter until they have received the new routes.
func (c *components) disconnect(dc string) {
	const routesUpdated = 2 * time.Second
	c.network.calls.Disconnect(dc)
	time.AfterFunc(routesUpdated, func() { c.network.calls.Disconnect(dc) })
}

// stateGroup returns the id of the Raft group in the federation state of a
// datacenter, or "" if it is not known. It does not block.
func (c *components) stateGroup(dc string) string {
	state, _, err := federation.ReadState(context.Background(), c.store, dc)
	if err != nil {
		return "" // the store is closed
	}
	return state.GetGroupId()
}

func (c *components) retryJoin() []string { return c.live.Load().RetryJoin }

// memberTags returns the tags of this server in both pools. Tags that Consul's
// servers read have values that these servers accept.
func (c *components) memberTags() map[string]string {
	return map[string]string{
		federation.TagRole: federation.RoleValue, federation.TagDC: c.cfg.DC, federation.TagNodeID: c.dataDir.nodeID,
		federation.TagPort:  strconv.Itoa(int(c.network.advertise.Port())),
		federation.TagBuild: version.Version + ":" + version.Get().Commit, federation.TagPrimary: c.cfg.PrimaryDC,
		"segment": "", "vsn": "2", "vsn_min": "2", "vsn_max": "3", "raft_vsn": "3",
		"use_tls": "1", "acls": "0", "ft_fs": "1", "ft_si": "1",
	}
}

func (c *components) buildFederation(*tlsutil.Identity) (err error) {
	calls, book := c.network.calls, c.network.book
	c.addressBook, err = federation.NewAddressBookUpdater(federation.AddressBookUpdaterConfig{
		DC: c.cfg.DC, PrimaryDC: c.cfg.PrimaryDC, Domain: c.cfg.Domain, PrimaryGateways: c.cfg.PrimaryGateways,
		Backend: c.store, LAN: c.lan, WAN: c.wan, Ready: c.loaded, File: filepath.Join(c.cfg.DataDir, "addresses.json"),
		Book: book, Paths: c.network.dialer.Paths, Replaced: c.disconnect, Logger: c.logger,
	})
	if err != nil {
		return err
	}
	c.joiner, err = federation.NewJoiner(federation.JoinerConfig{
		DC: c.cfg.DC, Node: c.cfg.Node, LAN: c.lan, WAN: c.wan, Book: book, WaitReachable: calls.Ping, Logger: c.logger,
	})
	if err != nil {
		return err
	}
	c.settings = &status.PrimarySettings{Node: c.cfg.Node, Configured: c.cfg.PrimaryDC, LAN: c.lan, Store: c.store}
	c.manager, err = replication.NewPrimaryManager(replication.PrimaryManagerConfig{
		DC: c.cfg.DC, ConfiguredPrimary: c.cfg.PrimaryDC, Backend: c.store, Registry: c.registry,
		Servers: c.settings, Remote: c.network, Logger: c.logger,
	})
	if err != nil {
		return err
	}
	c.primary = status.NewPrimaryView(c.cfg.DC, c.settings, c.manager, c.conflicts, c.logger)
	c.leader, err = newLeader(c.cfg.DC, c.store, c.claimant, c.operator, c.manager, c.primary, c.network, c.logger)
	return err
}

func (c *components) buildResources(*tlsutil.Identity) (err error) {
	calls, manager := c.network.calls, c.manager
	c.strong, err = resource.NewForwardingBackend(c.cfg.Node, c.store, func(node string) (pb.StoreServiceClient, error) {
		cc, err := calls.Server(node)
		if err != nil {
			return nil, err
		}
		return pb.NewStoreServiceClient(cc), nil
	})
	if err != nil {
		return err
	}
	c.resources, err = resource.NewService(resource.ServiceConfig{
		Backend: manager.Fenced(c.strong), Registry: c.registry, Peer: rpc.Peer,
		Primary: func() bool { return manager.Writable() == nil },
		DC:      c.cfg.DC, PrimaryDC: c.cfg.PrimaryDC, Logger: c.logger,
		PrimaryClient: func() (pb.ResourceServiceClient, error) { return c.remote.primaryResources() },
	})
	if err != nil {
		return err
	}
	c.remote = &remote{dc: c.cfg.DC, book: c.network.book, calls: calls, manager: manager, local: c.resources}
	c.source, err = replication.NewSource(replication.SourceConfig{
		Backend: c.strong, Registry: c.registry, Primary: manager, Logger: c.logger,
	})
	return err
}

func (c *components) buildEdge(*tlsutil.Identity) error {
	manager := c.manager
	states, err := federation.NewService(federation.ServiceConfig{
		Backend: manager.Fenced(c.store), DC: c.cfg.DC, PrimaryDC: c.cfg.PrimaryDC, Writable: manager.Writable, Peer: rpc.Peer, Claims: c.claims, Logger: c.logger,
		Alive: func(dc string) bool { return aliveIn(c.wan, dc) }, Connect: c.remote.federationStates,
	})
	if err != nil {
		return err
	}
	c.edge = rpc.New(rpc.Config{
		DC: c.cfg.DC, Node: c.cfg.Node, Domain: c.cfg.Domain, Leader: c.store, WriteError: c.store.WriteError,
		Connect: c.network.calls.Server, AllowRemoteWritesFrom: func() []string { return c.live.Load().AllowRemoteWritesFrom }, Logger: c.logger,
	})
	pb.RegisterFederationServiceServer(c.edge, states)
	resource.RegisterService(c.edge, c.resources)
	pb.RegisterStoreServiceServer(c.edge, resource.NewStoreService(c.store))
	pb.RegisterReplicationServiceServer(c.edge, c.source)
	pb.RegisterKeyringServiceServer(c.edge, c.keyring)
	pb.RegisterGatewayServiceServer(c.edge, &gatewayService{gateways: c.leader.gateways, book: c.addressBook})
	pb.RegisterCheckServiceServer(c.edge, &checkService{resources: c.resources, monitor: c.leader.checks})
	pb.RegisterOperatorServiceServer(c.edge, c.operator)
	pb.RegisterServerServiceServer(c.edge, &queryService{responses: c.edge.Responses(), query: c.query})
	return c.edge.RegisterIntrospection()
}

// query serves a request of another datacenter like the HTTP API.
func (c *components) query(ctx context.Context, req *pb.QueryRequest) (*pb.QueryResponse, error) {
	resp, err := httpapi.Serve(ctx, c.http.server.Handler, req)
	if err != nil {
		return nil, grpcstatus.FromContextError(err).Err()
	}
	return resp, nil
}

func (c *components) buildHTTP(id *tlsutil.Identity) (err error) {
	view := status.Config{
		DC: c.cfg.DC, Node: c.cfg.Node, MeshGatewayMode: c.cfg.MeshGatewayMode, BootstrapExpect: c.cfg.BootstrapExpect,
		Book: c.network.book, Dialer: c.network.dialer, Tunnel: c.network.tunnel, Mux: c.network.mux, Edge: c.edge,
		Store: c.store, LAN: c.lan, WAN: c.wan, Keyring: c.keyring, AddressBook: c.addressBook, Joiner: c.joiner, Claims: c.claims, Claimant: c.claimant,
		Primary: c.primary, AntiEntropy: c.leader.antiEntropy, Source: c.source,
	}
	checks := &checkReporter{dc: c.cfg.DC, node: c.cfg.Node, store: c.store, monitor: c.leader.checks, calls: c.network.calls}
	c.http, err = newHTTPServer(httpConfig{
		dc: c.cfg.DC, domain: c.cfg.Domain, useTLS: c.cfg.httpUsesTLS(), identity: id, logger: c.logger, registry: c.registry, remote: c.remote,
		api: httpapi.Config{
			DC: c.cfg.DC, Node: c.cfg.Node, Address: c.network.advertise.Addr().String(), Logger: c.logger,
			Cluster:   &cluster{status.NewReporter(view), c.remote},
			Resources: c.resources, Backend: c.strong, Report: checks.report,
		},
		view: view,
	})
	return err
}

// cluster implements httpapi.Cluster.
type cluster struct {
	*status.Reporter
	remote *remote
}

// Query implements httpapi.Cluster.
func (c *cluster) Query(ctx context.Context, dc string, req *pb.QueryRequest, limit time.Duration) (*pb.QueryResponse, error) {
	return c.remote.query(ctx, dc, req, limit)
}

// aliveIn reports whether any server of dc is alive.
func aliveIn(wan *gossip.Pool, dc string) bool {
	return slices.ContainsFunc(wan.Members(), func(m gossip.Member) bool {
		_, of, err := federation.SplitWANName(m.Name)
		return err == nil && of == dc && m.Alive()
	})
}

// run starts two groups of components and joins them. The upper group ends
// first, because this server needs the network to leave the pools.
func (c *components) run(ctx context.Context) error {
	base, stopLower := context.WithCancel(context.WithoutCancel(ctx))
	defer stopLower()
	grpcListeners := c.network.grpcListeners()
	lower, lctx := errgroup.WithContext(base)
	lower.Go(func() error { return c.network.run(lctx, c.tlsListener) })

	uctx, stopUpper := context.WithCancel(ctx)
	defer stopUpper()
	defer context.AfterFunc(lctx, stopUpper)() // the network failed
	upper, uctx := errgroup.WithContext(uctx)
	for _, run := range []func(context.Context) error{
		c.lan.Run, c.wan.Run, c.addressBook.Run, c.network.prober.Run, c.joiner.Run, c.tagger.Run, c.keyring.Run,
		c.claimant.Run, c.contacts.Run, c.group.runJoin, c.group.runBootstrap, c.watchStore, c.awaitLoaded, c.source.Run, c.applyUpdates,
	} {
		upper.Go(func() error { return run(uctx) })
	}
	upper.Go(func() error { return c.joiner.RunResync(uctx, c.cfg.PrimaryDC, c.network.calls.Reachability) })
	upper.Go(func() error { return c.store.RunWhileLeader(uctx, c.leader.run) })
	upper.Go(func() error { return c.edge.Serve(uctx, grpcListeners...) })
	upper.Go(func() error { return c.http.run(uctx, c.httpListener) })

	c.logger.Info("server started", "addr", c.addrs.Server, "http", c.addrs.HTTP, "primary", c.cfg.PrimaryDC)
	if c.cfg.Started != nil {
		c.cfg.Started(c.addrs)
	}
	err := upper.Wait()
	c.transferLeadership()
	closeErr := c.store.Close()
	stopLower()
	if lowerErr := lower.Wait(); err == nil {
		err = lowerErr
	}
	c.logger.Info("server stopped")
	return errors.Join(err, closeErr)
}

// applyUpdates applies changed settings until ctx ends.
func (c *components) applyUpdates(ctx context.Context) error {
	for {
		select {
		case next := <-c.cfg.Updates:
			c.live.Store(&next)
			if err := c.network.identity.Reload(); err != nil {
				c.logger.Error("cannot reload the certificate", "err", err)
			}
		case <-ctx.Done():
			return nil
		}
	}
}

// transferLeadership makes another server the leader, if there is one, so that
// the others need not wait for an election timeout.
func (c *components) transferLeadership() {
	peers, err := c.store.Peers()
	if err != nil || len(peers) < 2 || !c.store.IsLeader() {
		return
	}
	ctx, cancel := context.WithTimeout(context.Background(), stopTimeout)
	defer cancel()
	if err := c.store.TransferLeadership(ctx); err != nil {
		c.logger.Warn("cannot transfer leadership", "err", err)
	}
}

// watchStore returns an error when the store has failed, for example because of
// a disk error.
func (c *components) watchStore(ctx context.Context) error {
	select {
	case <-c.store.Failed():
		return c.store.Err()
	case <-ctx.Done():
		return nil
	}
}

// awaitLoaded closes c.loaded when the store has applied what its datacenter
// had committed before this server started. A leader detects this state by its
// barrier, and a follower by the commit index of its leader. There is no event
// for the applied index of a follower, so awaitLoaded polls it during the
// start.
func (c *components) awaitLoaded(ctx context.Context) error {
	for ctx.Err() == nil {
		changed := c.store.LeaderChanged()
		if c.store.CaughtUp() {
			close(c.loaded)
			return nil
		}
		backoff.Sleep(ctx, 10*time.Millisecond, changed)
	}
	return nil
}

// leader is the work of the server that leads its datacenter.
type leader struct {
	store       *raftstore.Store
	operator    *operator.Service
	manager     *replication.PrimaryManager
	primary     *status.PrimaryView
	gateways    *catalog.Gateways
	checks      *catalog.TTLMonitor
	antiEntropy *replication.AntiEntropy
	logger      *slog.Logger
}

func newLeader(
	dc string, store *raftstore.Store, claimant *federation.Claimant, op *operator.Service, manager *replication.PrimaryManager, primary *status.PrimaryView, n *network, logger *slog.Logger,
) (*leader, error) {
	l := &leader{store: store, operator: op, manager: manager, primary: primary, logger: logger}
	var err error
	if l.checks, err = catalog.NewTTLMonitor(store, logger); err != nil {
		return nil, err
	}
	l.gateways = catalog.NewGateways(dc, l.checks)
	l.antiEntropy, err = replication.NewAntiEntropy(replication.AntiEntropyConfig{
		DC: dc, Backend: store, Enabled: claimant.Enabled, PathsChanged: n.book.Changed, Logger: logger,
		Apply: func(ctx context.Context, s *pb.FederationState) error { return l.applyState(ctx, dc, n, s) },
	})
	return l, err
}

// applyState writes the federation state of this datacenter in the primary.
func (l *leader) applyState(ctx context.Context, dc string, n *network, s *pb.FederationState) error {
	manager := l.manager
	primary := manager.PrimaryDC()
	if primary == dc {
		if err := manager.Writable(); err != nil {
			return err
		}
		_, _, err := federation.Upsert(ctx, manager.Fenced(l.store), s)
		return err
	}
	_, err := pb.NewFederationServiceClient(n.calls.Reader(primary)).Apply(ctx, &pb.ApplyFederationStateRequest{
		Op: pb.ApplyFederationStateRequest_OP_UPSERT, State: s,
	}, grpc.WaitForReady(true))
	return err
}

// run does the work until ctx ends: leadership was lost, or the server stops.
func (l *leader) run(ctx context.Context) error {
	l.logger.Info("leading the datacenter")
	g, gctx := errgroup.WithContext(ctx)
	g.Go(func() error { return federation.KeepGroupID(gctx, l.store, l.logger) })
	g.Go(func() error { return l.checks.Run(gctx) })
	g.Go(func() error { return l.antiEntropy.Run(gctx) })
	g.Go(func() error { return l.operator.RunMembership(gctx) })
	g.Go(func() error { return resource.Reap(gctx, l.store, l.logger) })
	g.Go(func() error { return l.manager.RunLeader(gctx) })
	g.Go(func() error { return l.primary.WatchOthers(gctx) })
	err := g.Wait()
	l.logger.Info("no longer leading the datacenter")
	if ctx.Err() != nil {
		return nil // components fail when leadership is lost
	}
	return err
}
