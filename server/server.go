// SPDX-License-Identifier: MPL-2.0

package server

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"net"
	"path/filepath"
	"strconv"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"github.com/prometheus/client_golang/prometheus"

	"github.com/wanfed/wanfed/api/pb"
	"github.com/wanfed/wanfed/catalog"
	"github.com/wanfed/wanfed/controller"
	"github.com/wanfed/wanfed/enroll"
	"github.com/wanfed/wanfed/federation"
	"github.com/wanfed/wanfed/gateway/proxycfg"
	"github.com/wanfed/wanfed/gateway/xds"
	"github.com/wanfed/wanfed/gossip"
	"github.com/wanfed/wanfed/internal/monitor"
	"github.com/wanfed/wanfed/internal/version"
	"github.com/wanfed/wanfed/kv"
	"github.com/wanfed/wanfed/lease"
	"github.com/wanfed/wanfed/policy"
	"github.com/wanfed/wanfed/replication"
	"github.com/wanfed/wanfed/resource"
	"github.com/wanfed/wanfed/resource/raftstore"
	"github.com/wanfed/wanfed/revocation"
	"github.com/wanfed/wanfed/server/audit"
	"github.com/wanfed/wanfed/server/checks"
	"github.com/wanfed/wanfed/server/keyring"
	"github.com/wanfed/wanfed/server/operator"
	"github.com/wanfed/wanfed/server/raftgroup"
	"github.com/wanfed/wanfed/server/remote"
	"github.com/wanfed/wanfed/server/rpc"
	"github.com/wanfed/wanfed/server/status"
	"github.com/wanfed/wanfed/session"
	"github.com/wanfed/wanfed/tlsutil"
	"github.com/wanfed/wanfed/wanfed"
)

// stopTimeout is the time for open requests to finish after the server begins
// to stop.
const stopTimeout = 2 * time.Second

// Run runs one datacenter server until ctx ends. Then Run leaves the gossip
// pools, closes the store and returns nil. It returns an error if cfg is
// invalid, if a port is in use, or if a component fails.
func Run(ctx context.Context, cfg Config) error {
	cfg = cfg.withDefaults()
	id, err := cfg.validate()
	if err != nil {
		return err
	}
	c, err := assemble(ctx, cfg, id)
	if err != nil {
		return err
	}
	err = c.run(ctx)
	return errors.Join(err, c.close())
}

// components has the components of a server. assemble builds them in the order
// of the fields. A component uses only components of fields above its own.
type components struct {
	// lifetime is the context of Run, for callbacks of serf, which have none.
	lifetime context.Context

	cfg     Config
	started time.Time
	live    atomic.Pointer[LiveSettings]
	logger  *slog.Logger
	addrs   Addrs

	dataDir dataDir

	tlsListener, httpListener net.Listener
	httpSocket                net.Listener // nil: no Unix socket
	httpUsesTLS               bool
	monitor                   *monitor.Server // nil: no monitor address
	metrics                   prometheus.Gatherer
	requests                  requestMetrics

	network *network
	audit   *audit.Log // nil: no audit log
	policy  *policy.Engine
	store   *raftstore.Store

	lan, wan  *gossip.Pool
	claims    *federation.Claims // claims of servers of other datacenters, in the primary
	clones    *federation.Clones // of servers of the primary, in a secondary
	claimant  *federation.Claimant
	deletions *federation.Deletions
	names     *raftgroup.Names
	conflicts *federation.PrimaryConflicts
	// disconnects has a goroutine per datacenter that was replaced less than
	// two seconds ago. run waits for them.
	disconnects sync.WaitGroup
	runTags     func(ctx context.Context) error // updates the WAN tags when the gateways of this datacenter change
	contacts    *raftgroup.Contacts
	group       *raftgroup.Group
	operator    *operator.Service // also maintains the membership of the Raft group
	snapshots   *operator.Schedule
	keyring     *keyring.Service

	loaded      chan struct{} // closed when the store has applied all entries that were committed before the start
	addressBook *federation.AddressBookUpdater
	proxyInputs proxycfg.Inputs
	proxies     *proxycfg.Manager // snapshots of the gateways of this datacenter
	envoys      *xds.Server       // sends snapshots to gateways that are Envoy proxies
	joiner      *federation.Joiner
	settings    *status.PrimarySettings
	manager     *replication.PrimaryManager
	primary     *status.PrimaryView
	checks      *catalog.TTLMonitor      // runs at the leader
	runner      *checks.Runner           // runs the checks of this server's node
	gateways    *catalog.Gateways        // used at the leader
	sessions    *session.Manager         // runs at the leader
	antiEntropy *replication.AntiEntropy // runs at the leader

	registry    *resource.Registry
	strong      *resource.ForwardingBackend // the store, with strong reads and writes at any server
	resources   *resource.Service
	controllers *controller.Runtime
	leases      *lease.Service // runs at the leader
	remote      *remote.Forwarder
	source      *replication.Source // sends resources to secondaries, in the primary
	edge        *rpc.Edge
	renewals    *enroll.RenewalService
	reporter    *status.Reporter
	http        *httpServer
}

// assemble builds all components of a valid configuration. It binds both ports
// and opens the store, but does not serve requests. assemble binds the ports
// first. A server that cannot bind them therefore writes nothing to the disk.
func assemble(ctx context.Context, cfg Config, id *tlsutil.Identity) (_ *components, err error) {
	c := &components{
		lifetime: ctx, cfg: cfg, started: time.Now(), logger: cfg.Logger.With("dc", cfg.DC, "node", cfg.Node),
		loaded: make(chan struct{}), requests: newRequestMetrics(),
	}
	c.live.Store(new(cfg.Live()))
	defer func() {
		if err != nil {
			err = errors.Join(err, c.close())
		}
	}()
	for _, build := range []func(*tlsutil.Identity) error{
		c.listen, c.buildPolicy, c.openStore, c.buildGossip, c.buildFederation, c.buildResources, c.buildEdge, c.buildHTTP,
	} {
		if err := build(id); err != nil {
			return nil, err
		}
	}
	return c, nil
}

// close closes the listeners and the store. It is idempotent.
func (c *components) close() error {
	var errs []error
	if c.monitor != nil {
		_ = c.monitor.Close() // an error means that it is closed
	}
	for _, ln := range []net.Listener{c.tlsListener, c.httpListener, c.httpSocket} {
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
	addr, useTLS, err := c.cfg.parseHTTPAddr()
	if err != nil {
		return err
	}
	if c.httpListener, err = listen(addr, "--http-addr"); err != nil {
		return err
	}
	if c.httpSocket, err = c.cfg.listenSocket(); err != nil {
		return err
	}
	if err := c.listenMonitor(id); err != nil {
		return err
	}
	scheme := "http"
	if c.httpUsesTLS = useTLS; useTLS {
		scheme = "https"
	}
	c.addrs.Server, c.addrs.HTTP = advertise.String(), scheme+"://"+c.httpListener.Addr().String()
	if c.dataDir, err = openDataDir(c.cfg.DataDir, c.cfg.DC); err != nil {
		return err
	}
	if err := revocation.Load(c.revocationFile(), id); err != nil {
		return err
	}
	reconnected := func(dc string) { c.wan.Announce(dc) }
	c.network, err = newNetwork(c.cfg, id, advertise, c.knownEpoch,
		func(epoch, dc string) { c.reportEpoch(epoch, dc) }, reconnected, c.logger)
	return err
}

// listen returns a listener of addr. The errors recommend the argument flag to
// select another address.
func listen(addr, flag string) (net.Listener, error) {
	ln, err := net.Listen("tcp", addr)
	switch {
	case errors.Is(err, syscall.EADDRINUSE):
		return nil, fmt.Errorf("port of %s is in use by another process: stop the process (see: ss -ltnp), "+
			"or choose another port with %s", addr, flag)
	case errors.Is(err, syscall.EADDRNOTAVAIL):
		return nil, fmt.Errorf("%s is not an address of this machine: choose another address with %s", addr, flag)
	case errors.Is(err, syscall.EACCES):
		return nil, fmt.Errorf("port of %s is not allowed for this user: choose a port above 1023 with %s, "+
			"or give the program CAP_NET_BIND_SERVICE", addr, flag)
	case err != nil:
		return nil, fmt.Errorf("listen on %s: %w", addr, err)
	}
	return ln, nil
}

func (c *components) openStore(id *tlsutil.Identity) (err error) {
	if c.registry, err = newRegistry(id); err != nil {
		return err
	}
	c.store, err = raftstore.Open(raftstore.Config{
		Node:       c.cfg.Node,
		Dir:        filepath.Join(c.cfg.DataDir, raftDir),
		Stream:     c.network.raftStream(),
		OpsVersion: func() (int, string) { return raftgroup.OpsVersion(c.lan, c.store) },
		Heartbeat:  c.cfg.heartbeat,
		HoldVote:   true,
		Logger:     c.logger,
	})
	return err
}

func (c *components) buildGossip(*tlsutil.Identity) error {
	keys, err := openKeyring(c.cfg, c.logger)
	if err != nil {
		return err
	}
	c.claims, c.clones = &federation.Claims{}, &federation.Clones{}
	c.claimant, err = federation.NewClaimant(federation.ClaimantConfig{
		DC: c.cfg.DC, Node: c.cfg.Node, Primary: func() string { return c.manager.PrimaryDC() }, Backend: c.store,
		Instance: c.dataDir.instance, PreviousInstance: c.dataDir.previousInstance,
		Address: c.network.advertise.String(),
		Client: func(dc string) pb.FederationServiceClient {
			return pb.NewFederationServiceClient(c.network.calls.Reader(dc))
		},
		Datacenters:  c.network.datacenters,
		PathsChanged: c.network.PathsChanged, Logger: c.logger,
	})
	if err != nil {
		return err
	}
	c.names = raftgroup.NewNames(raftgroup.NamesConfig{
		DC: c.cfg.DC, Node: c.cfg.Node, Instance: c.dataDir.instance, Address: c.network.advertise.String(),
		Started: c.started, Store: c.store, Others: func() map[string]string { return c.contacts.Known() },
		Dialer: c.network.dialer, Report: c.claimant.SetDuplicate,
	})
	pool := gossip.Config{
		Advertise: c.network.advertise, Keyring: keys,
		AcceptPlaintext: c.cfg.GossipAcceptPlain, SendPlaintext: c.cfg.GossipSendPlain,
		NameTaken: c.names.Taken,
	}
	lan, wan := pool, pool

	lan.Kind, lan.Name, lan.Transport = wanfed.PoolLAN, c.cfg.Node, c.network.tunnel.Transport(wanfed.PoolLAN)
	lan.Tags = c.memberTags()
	maps.Copy(lan.Tags, raftgroup.Tags(c.store, c.cfg.BootstrapExpect))
	lan.Admit = func(m gossip.Member) error {
		if dc := m.Tags[federation.TagDC]; dc != c.cfg.DC {
			return fmt.Errorf("LAN member %s claims datacenter %q, not %q", m.Name, dc, c.cfg.DC)
		}
		return nil
	}
	lan.Enabled = c.claimant.EnabledLAN
	lan.Logger = c.logger.With("pool", "lan")
	if c.lan, err = gossip.New(lan); err != nil {
		return err
	}

	c.conflicts = federation.NewPrimaryConflicts(c.cfg.DC, c.cfg.PrimaryDC, c.logger)
	wan.Kind, wan.Name = wanfed.PoolWAN, federation.WANName(c.cfg.Node, c.cfg.DC)
	wan.Transport = c.network.tunnel.Transport(wanfed.PoolWAN)
	wan.Tags = c.memberTags()
	wan.Admit = federation.Admit(c.cfg.DC, c.cfg.PrimaryDC, c.acceptedGroup, c.conflicts.Record)
	wan.GroupOf = federation.DatacenterOf
	wan.HasPath = func(dc string) bool { return dc == c.cfg.DC || len(c.network.book.Load().Paths[dc]) > 0 }
	wan.Enabled = c.claimant.Enabled
	c.deletions = federation.NewDeletions(c.anyServerAlive)
	wan.Reap = func(name string) bool { return c.deletions.Final(federation.DatacenterOf(name)) }
	wan.Logger = c.logger.With("pool", "wan")
	if c.wan, err = gossip.New(wan); err != nil {
		return err
	}

	c.runTags = func(ctx context.Context) error {
		known := func() string { return strconv.FormatUint(c.manager.KnownEpoch().Number, 10) }
		epoch := federation.EpochTag{Type: replication.PrimaryType, Value: known}
		return federation.RunGatewayTags(ctx, federation.GatewayTagsConfig{
			Backend: c.store, WAN: c.wan, Tags: wan.Tags, Epoch: epoch, Gateways: c.gateways, Clones: c.claimant.Processes,
			Logger: c.logger,
		})
	}
	c.contacts = raftgroup.NewContacts(raftgroup.ContactsConfig{
		DC: c.cfg.DC, Node: c.cfg.Node, Path: filepath.Join(c.cfg.DataDir, "servers.json"),
		LAN: c.lan, WAN: c.wan, Peers: c.store.Peers, Logger: c.logger,
	})
	c.group = raftgroup.New(raftgroup.Config{
		Node: c.cfg.Node, Expect: c.cfg.BootstrapExpect, RetryJoin: c.retryJoin, Tags: lan.Tags,
		Store: c.store, LAN: c.lan, Contacts: c.contacts, Describe: c.names.Describe, Logger: c.logger,
	})
	c.operator = operator.New(operator.Config{
		DC: c.cfg.DC, Node: c.cfg.Node, Store: c.store, LAN: c.lan,
		TakeOver: func(ctx context.Context, req *pb.TakeOverRequest) (*pb.TakeOverResponse, error) {
			return c.manager.TakeOver(ctx, req)
		},
		Expect: c.cfg.BootstrapExpect, DeadAfter: func() time.Duration { return c.live.Load().DeadServerAfter },
		Connect: c.network.calls.Server, CheckpointInterval: c.cfg.checkpointInterval, Logger: c.logger,
		Describe: c.describe, LogTail: c.cfg.LogTail,
	})
	c.snapshots = operator.NewSchedule(operator.ScheduleConfig{
		DC: c.cfg.DC, Node: c.cfg.Node, Every: c.cfg.SnapshotEvery, Dir: c.cfg.SnapshotDir, Keep: c.cfg.SnapshotKeep,
		Take: c.store.Snapshot, Logger: c.logger,
	})
	c.keyring = keyring.New(keyring.Config{
		DC: c.cfg.DC, Node: c.cfg.Node, PrimaryDC: c.cfg.PrimaryDC,
		AcceptsPlaintext: c.cfg.GossipAcceptPlain, SendsPlaintext: c.cfg.GossipSendPlain,
		RetryJoin: c.retryJoin, Servers: c.contacts.Known, Store: keys, LAN: c.lan, WAN: c.wan,
		RaftPeers: c.store.Peers,
		Book:      c.network.book, Dialer: c.network.dialer, Calls: c.network.calls, Logger: c.logger,
	})
	return nil
}

func (c *components) retryJoin() []string { return c.live.Load().RetryJoin }

// memberTags returns the tags of this server in both pools. The tags in quotes
// are for Consul's servers.
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
		Book: book, Paths: c.network.dialer.Paths, Replaced: c.disconnect, Deleted: c.deletions.Final,
		Gateways: c.network.headers.update, Logger: c.logger,
	})
	if err != nil {
		return err
	}
	c.proxies = proxycfg.NewManager(c.cfg.DC, c.cfg.Domain, &c.proxyInputs)
	c.envoys = xds.NewServer(xds.Config{
		Snapshot: c.proxies.Snapshot, Logger: c.logger,
		Gateway: func(ctx context.Context) (string, error) { p, err := rpc.Peer(ctx); return p.Node, err },
	})
	c.joiner, err = federation.NewJoiner(federation.JoinerConfig{
		DC: c.cfg.DC, Node: c.cfg.Node, LAN: c.lan, WAN: c.wan, Book: book, WaitReachable: calls.Ping, Logger: c.logger,
	})
	if err != nil {
		return err
	}
	c.settings = &status.PrimarySettings{Node: c.cfg.Node, Configured: c.cfg.PrimaryDC, LAN: c.lan, Store: c.store}
	c.manager, err = replication.NewPrimaryManager(replication.PrimaryManagerConfig{
		DC: c.cfg.DC, ConfiguredPrimary: c.cfg.PrimaryDC, Backend: c.store, Registry: c.registry,
		Servers: c.settings, Remote: c.network, DataDir: c.cfg.DataDir, Identity: c.network.identity,
		Lease: c.cfg.PrimaryLease, Logger: c.logger,
	})
	if err != nil {
		return err
	}
	c.primary = status.NewPrimaryView(c.cfg.DC, c.settings, c.manager, c.conflicts, c.logger)
	if c.checks, err = catalog.NewTTLMonitor(c.policy.Noting(c.store), c.logger); err != nil {
		return err
	}
	c.runner, err = checks.New(checks.Config{
		Node: c.cfg.Node, Address: c.network.advertise.Addr(), Backend: c.store, Report: c.reportProbe, Logger: c.logger,
	})
	if err != nil {
		return err
	}
	c.gateways = catalog.NewGateways(c.cfg.DC, c.checks)
	c.sessions, err = session.NewManager(session.ManagerConfig{
		Backend: c.store, Locked: kv.EntryType, Confirm: c.confirmLeadership, Logger: c.logger,
	})
	if err != nil {
		return err
	}
	c.antiEntropy, err = replication.NewAntiEntropy(replication.AntiEntropyConfig{
		DC: c.cfg.DC, Backend: c.store, Enabled: c.claimant.Enabled, PathsChanged: book.Changed, Apply: c.applyState,
		Logger: c.logger,
	})
	return err
}

func (c *components) buildResources(*tlsutil.Identity) (err error) {
	calls, manager := c.network.calls, c.manager
	c.strong, err = resource.NewForwardingBackend(c.cfg.Node, c.store,
		func(node string) (pb.StoreServiceClient, error) {
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
		Backend: c.policy.Noting(manager.Fenced(c.strong)), Registry: c.registry, Peer: rpc.Peer, Decide: c.policy.Decide,
		Primary: func() bool { return manager.Writable() == nil },
		DC:      c.cfg.DC, PrimaryDC: c.cfg.PrimaryDC, Logger: c.logger,
		PrimaryClient: func() (pb.ResourceServiceClient, error) { return c.remote.PrimaryClient() },
	})
	if err != nil {
		return err
	}
	c.leases, err = lease.NewService(lease.ServiceConfig{
		Backend: c.policy.Noting(c.store), Confirm: c.confirmLeadership, Allow: c.resources.Allow, Logger: c.logger,
	})
	if err != nil {
		return err
	}
	c.remote = remote.New(remote.Config{
		DC: c.cfg.DC, Book: c.network.book, Calls: calls, Manager: manager, Local: c.resources,
		Requests: c.requests.forwarded,
	})
	c.source = replication.NewSource(manager, c.strong)
	return c.buildControllers()
}

func (c *components) buildEdge(*tlsutil.Identity) error {
	manager := c.manager
	states, err := federation.NewService(federation.ServiceConfig{
		Backend: c.policy.Noting(manager.Fenced(c.store)), DC: c.cfg.DC, PrimaryDC: c.cfg.PrimaryDC, Writable: manager.Writable,
		Primary: manager.PrimaryDC, ReplacePrimary: manager.ReplacePrimary,
		Peer: rpc.Peer, Decide: c.policy.Decide, Claims: c.claims, Clones: c.clones, Alive: c.anyServerAlive,
		Connect: c.remote.FederationClient, Logger: c.logger,
	})
	if err != nil {
		return err
	}
	c.edge = rpc.New(rpc.Config{
		DC: c.cfg.DC, Node: c.cfg.Node, Domain: c.cfg.Domain, Leader: c.store, WriteError: c.store.WriteError,
		Connect: c.network.calls.Server, Logger: c.logger,
		Policy: c.policy, Learn: c.called, Epoch: c.knownEpoch, Forward: c.mergedCalls(), Calls: c.requests.calls,
		Tracer: c.cfg.Tracer,
	})
	pb.RegisterFederationServiceServer(c.edge, states)
	resource.RegisterService(c.edge, c.resources)
	pb.RegisterStoreServiceServer(c.edge, resource.NewStoreService(c.store))
	pb.RegisterReplicationServiceServer(c.edge, c.source)
	pb.RegisterKeyringServiceServer(c.edge, c.keyring)
	pb.RegisterGatewayServiceServer(c.edge, &gatewayService{
		gateways: c.gateways, book: c.addressBook, identity: c.network.identity,
		report: func(p tlsutil.Peer, cert *pb.CertificateInUse) { c.renewals.Report(p, cert) },
	})
	discoveryv3.RegisterAggregatedDiscoveryServiceServer(c.edge, c.envoys)
	pb.RegisterCheckServiceServer(c.edge, &checkService{resources: c.resources, monitor: c.checks})
	pb.RegisterLeaseServiceServer(c.edge, c.leases)
	pb.RegisterSessionServiceServer(c.edge, &sessionService{resources: c.resources, manager: c.sessions})
	pb.RegisterOperatorServiceServer(c.edge, c.operator)
	pb.RegisterServerServiceServer(c.edge, remote.NewService(remote.ServiceConfig{
		Responses: c.edge.Responses(), HTTP: c.query, Record: c.policy.Record, Names: c.names,
		Tracer: c.cfg.Tracer,
		Describe: func(node string) (*pb.DescribeCallerResponse, error) {
			return raftgroup.DescribeCaller(node, c.store, c.lan)
		},
		Reach: func(ctx context.Context, dc string, wait time.Duration) *pb.ReachabilityResponse {
			return c.reporter.Reachability(ctx, dc, wait)
		},
	}))
	c.serveEnrollment()
	return c.edge.RegisterIntrospection()
}
