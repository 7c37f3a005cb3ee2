// SPDX-License-Identifier: MPL-2.0

package proxycfg

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"math/rand/v2"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"google.golang.org/grpc"
	grpcbackoff "google.golang.org/grpc/backoff"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	"github.com/wanfed/wanfed/api"
	"github.com/wanfed/wanfed/api/pb"
	"github.com/wanfed/wanfed/gateway"
	"github.com/wanfed/wanfed/gateway/internal/upstream"
	"github.com/wanfed/wanfed/internal/backoff"
	"github.com/wanfed/wanfed/internal/netaddr"
	"github.com/wanfed/wanfed/tlsutil"
)

// Config configures a Client.
type Config struct {
	// Identity has the certificate of the gateway, which names the gateway and
	// its datacenter. Required.
	Identity *tlsutil.Identity
	// Servers are addresses (host:port) of servers of the datacenter, at least
	// one. The addresses in the last snapshot are also used.
	Servers []string
	// LAN is the address (host:port) that servers of this datacenter dial. WAN
	// is the address that other datacenters dial. Required.
	LAN, WAN string
	// Upstream applies to connections to the servers of this datacenter.
	Upstream UpstreamOptions
	// DataDir stores the last snapshot. It is created with mode 0700 if absent.
	// Required.
	DataDir string
	// LANListener and WANListener receive the route tables. Both are nil if
	// another program forwards the connections.
	LANListener, WANListener *gateway.Listener
	// Logger receives log lines. Required.
	Logger *slog.Logger
}

// Client connects a gateway to the servers of its datacenter.
type Client struct {
	cfg            Config
	dialer         *upstream.Dialer
	inputs         Inputs
	manager        *Manager
	connected      chan struct{} // size 1: a new connection wakes the heartbeat
	ready          chan struct{} // closed when the gateway has routes
	skipDeregister atomic.Bool
	applied        *Snapshot // of the tables; only the goroutine of New and then applySnapshots use it

	mu      sync.Mutex
	status  Status
	snap    *pb.GatewaySnapshot // the last message of a server, or the one on disk
	servers []string            // addresses of the servers of snap, in random order
	warned  map[string]warning  // by the message that was logged
	dialErr error               // of the last dial; nil after a success
}

const (
	callTimeout       = 5 * time.Second // less than the timeout of a registration
	deregisterTimeout = 2 * time.Second
	routesTimeout     = time.Second // the longest wait for routes before the first Register
	minBackoff        = 50 * time.Millisecond
	maxBackoff        = time.Second
	minInterval       = 100 * time.Millisecond // between heartbeats
)

// Log messages of failures that may persist.
const (
	cannotRegister = "cannot register"
	cannotFollow   = "cannot follow snapshots"
	cannotStore    = "cannot store snapshot"
)

// connectParams bounds the backoff of gRPC: a gateway reconnects soon after a
// server restarts.
var connectParams = grpc.WithConnectParams(grpc.ConnectParams{
	Backoff: grpcbackoff.Config{
		BaseDelay: minBackoff, Multiplier: 1.6, Jitter: 0.2, MaxDelay: 500 * time.Millisecond,
	},
	MinConnectTimeout: 10 * time.Second,
})

// New checks cfg and applies the snapshot on disk, if there is one. It connects
// to nothing.
func New(cfg Config) (*Client, error) {
	switch {
	case cfg.Identity == nil || cfg.Logger == nil || cfg.DataDir == "":
		return nil, errors.New("proxycfg: Identity, DataDir and Logger are required")
	case (cfg.LANListener == nil) != (cfg.WANListener == nil):
		return nil, errors.New("proxycfg: LANListener and WANListener are required, or neither")
	case len(cfg.Servers) == 0:
		return nil, errors.New(
			"no server is given: a gateway needs the address of at least one server of its datacenter")
	}
	if err := os.MkdirAll(cfg.DataDir, 0o700); err != nil {
		return nil, fmt.Errorf("create data_dir: %w; set --data-dir to a directory that this user may write", err)
	}
	c := &Client{
		cfg: cfg, dialer: newDialer(cfg.Identity, cfg.Upstream.ProxyProtocol),
		connected: make(chan struct{}, 1), ready: make(chan struct{}), warned: map[string]warning{},
	}
	c.loadStored()
	c.manager = NewManager(c.peer().DC, cfg.Identity.Domain(), &c.inputs)
	err := c.manager.Register(Registration{Name: c.peer().Node, LAN: cfg.LAN, WAN: cfg.WAN})
	if err != nil {
		return nil, err
	}
	if snap, _ := c.manager.Snapshot(c.peer().Node); snap != nil {
		c.setTables(snap)
	}
	return c, nil
}

// peer returns the identity of this gateway.
func (c *Client) peer() tlsutil.Peer { return c.cfg.Identity.Peer() }

// loadStored uses the snapshot on disk as input.
func (c *Client) loadStored() {
	snap, err := loadSnapshot(c.cfg.DataDir)
	if err == nil && snap != nil {
		err = c.checkOwn(snap)
	}
	switch {
	case err != nil:
		c.cfg.Logger.Warn("snapshot on disk ignored", "err", err)
	case snap != nil:
		c.setInputs(snap, Status{FromDisk: true})
		c.cfg.Logger.Info("routing by the snapshot on disk until a server answers",
			"servers", len(snap.Servers), "datacenters", len(snap.Datacenters))
	}
}

// checkOwn refuses a snapshot of another datacenter or domain.
func (c *Client) checkOwn(snap *pb.GatewaySnapshot) error {
	dc, domain := c.peer().DC, c.cfg.Identity.Domain()
	if snap.Datacenter != dc || snap.Domain != domain {
		return fmt.Errorf("it is of datacenter %q and domain %q, and this gateway is of %q and %q",
			snap.Datacenter, snap.Domain, dc, domain)
	}
	return nil
}

// Ready returns a channel that is closed when the gateway has routes, from disk
// or from a server.
func (c *Client) Ready() <-chan struct{} { return c.ready }

// SkipDeregister lets Run end without deregistering, because another process
// continues as this gateway. It may be called while Run runs.
func (c *Client) SkipDeregister() { c.skipDeregister.Store(true) }

// Run registers the gateway and follows its snapshot until ctx ends. Then it
// deregisters within 2 s and returns nil. Run returns an error if no server
// answers and the data directory was deleted. It may be called once.
func (c *Client) Run(ctx context.Context) error {
	cc, err := api.NewGRPCClient(c.dial, connectParams)
	if err != nil {
		return err
	}
	defer c.dialer.Wait()
	defer cc.Close()
	client := pb.NewGatewayServiceClient(cc)
	ctx, stop := context.WithCancelCause(ctx)
	defer stop(nil)
	var loops sync.WaitGroup
	loops.Go(func() { c.register(ctx, client, stop) })
	loops.Go(func() { c.follow(ctx, client) })
	loops.Go(func() { c.manager.Run(ctx) })
	loops.Go(func() { c.applySnapshots(ctx) })
	loops.Wait()
	if err := context.Cause(ctx); errors.Is(err, errNoDataDir) {
		return err
	}
	if !c.skipDeregister.Load() {
		c.deregister(ctx, client)
	}
	return nil
}

// errNoDataDir reports that the data directory was deleted.
var errNoDataDir = errors.New("it was deleted while the gateway ran, and no server answers; create it and start " +
	"the gateway again")

// checkDataDir returns an error if the data directory does not exist.
func (c *Client) checkDataDir() error {
	if _, err := os.Stat(c.cfg.DataDir); errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("data directory %s: %w", c.cfg.DataDir, errNoDataDir)
	}
	return nil
}

// register sends heartbeats. It begins when the gateway has routes, because
// servers dial a gateway as soon as it registers. If a heartbeat fails and the
// data directory was deleted, register calls stop: a gateway without servers
// and without stored routes has no use, and would retry indefinitely.
func (c *Client) register(ctx context.Context, client pb.GatewayServiceClient, stop context.CancelCauseFunc) {
	backoff.Sleep(ctx, routesTimeout, c.ready) // without routes, Register reports the reason
	retry, registered := backoff.Backoff{Min: minBackoff, Max: maxBackoff}, false
	for ctx.Err() == nil {
		interval, err := c.registerOnce(ctx, client)
		var pause time.Duration
		switch {
		case ctx.Err() != nil:
			return
		case err != nil:
			c.failed(cannotRegister, err)
			if err := c.checkDataDir(); err != nil {
				stop(err)
				return
			}
			pause, registered = retry.Next(), false
		default:
			c.worked(cannotRegister)
			if !registered {
				c.cfg.Logger.Info("registered", "lan", c.cfg.LAN, "wan", c.cfg.WAN, "interval", interval)
			}
			registered = true
			retry.Reset()
			pause = interval - rand.N(interval/10)
		}
		if backoff.Sleep(ctx, pause, c.connected) {
			retry.Reset() // gRPC may not use the new connection yet
		}
	}
}

// registerOnce registers once and returns the interval until the next call.
func (c *Client) registerOnce(ctx context.Context, client pb.GatewayServiceClient) (time.Duration, error) {
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	resp, err := client.Register(ctx, &pb.RegisterGatewayRequest{Lan: c.cfg.LAN, Wan: c.cfg.WAN})
	if err != nil {
		return 0, err
	}
	select {
	case <-c.connected: // Register caused the connection
	default:
	}
	c.mu.Lock()
	c.status.Registered = time.Now()
	c.mu.Unlock()
	return max(resp.GetInterval().AsDuration(), minInterval), nil
}

// follow applies snapshots as they arrive.
func (c *Client) follow(ctx context.Context, client pb.GatewayServiceClient) {
	retry := backoff.Backoff{Min: minBackoff, Max: maxBackoff}
	for ctx.Err() == nil {
		if err := c.watch(ctx, client, retry.Reset); ctx.Err() == nil {
			c.failed(cannotFollow, err)
			backoff.Sleep(ctx, retry.Next(), nil)
		}
	}
}

// watch applies the snapshots of one stream until the stream fails. It calls
// received for each snapshot.
func (c *Client) watch(ctx context.Context, client pb.GatewayServiceClient, received func()) error {
	stream, err := client.Watch(ctx, &pb.WatchGatewayRequest{}, grpc.WaitForReady(true))
	if err != nil {
		return err
	}
	for {
		snap, err := stream.Recv()
		if err != nil {
			return err
		}
		received()
		c.worked(cannotFollow)
		if err := c.checkOwn(snap); err != nil {
			return fmt.Errorf("snapshot refused: %w", err)
		}
		c.apply(snap)
	}
}

// apply uses a snapshot of a server as input and stores it on disk.
func (c *Client) apply(snap *pb.GatewaySnapshot) {
	c.mu.Lock()
	same := !c.status.FromDisk && proto.Equal(c.snap, snap)
	early := len(snap.Servers) == 0 && len(c.snap.GetServers()) > 0
	c.mu.Unlock()
	if same {
		return
	}
	if early { // the snapshot does not even have the server that sent it
		c.cfg.Logger.Debug("snapshot of a server that has just started ignored")
		return
	}
	c.setInputs(snap, Status{SnapshotAt: time.Now()})
	if err := saveSnapshot(c.cfg.DataDir, snap); err != nil {
		c.failed(cannotStore, err)
	}
}

// setInputs replaces the inputs of the manager and the addresses of servers.
// source has the fields FromDisk and SnapshotAt.
func (c *Client) setInputs(snap *pb.GatewaySnapshot, source Status) {
	origin := "disk"
	if !source.FromDisk {
		origin = "server " + c.Status().Server
	}
	logFaults(c.cfg.Logger, c.inputs.set(snap, origin, source.SnapshotAt))
	var addrs []string
	for _, s := range snap.Servers {
		if netaddr.CheckHostPort(s.Address) == nil {
			addrs = append(addrs, s.Address)
		}
	}
	// The gateways of a datacenter should not all choose the same server.
	rand.Shuffle(len(addrs), func(i, j int) { addrs[i], addrs[j] = addrs[j], addrs[i] })
	c.mu.Lock()
	defer c.mu.Unlock()
	c.snap, c.servers = snap, addrs
	c.status.FromDisk, c.status.SnapshotAt = source.FromDisk, source.SnapshotAt
}

// applySnapshots replaces the routes after each change of the snapshot, until
// ctx ends.
func (c *Client) applySnapshots(ctx context.Context) {
	for {
		snap, changed := c.manager.Snapshot(c.peer().Node)
		if snap != nil && snap != c.applied {
			c.setTables(snap)
			c.cfg.Logger.Info("routes changed", "servers", len(snap.Servers), "datacenters", len(snap.Datacenters))
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return
		}
	}
}

// setTables replaces the routes by the routes of a snapshot.
func (c *Client) setTables(snap *Snapshot) {
	if c.cfg.LANListener != nil {
		lan, wan, err := Tables(snap, c.cfg.Upstream)
		if err != nil { // the parts of a snapshot are valid
			c.cfg.Logger.Error("snapshot ignored", "err", err)
			return
		}
		c.cfg.LANListener.SetTable(lan)
		c.cfg.WANListener.SetTable(wan)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.applied == nil {
		close(c.ready)
	}
	c.applied, c.status.HasSnapshot = snap, true
}

// deregister calls Deregister after the end of ctx.
func (c *Client) deregister(ctx context.Context, client pb.GatewayServiceClient) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), deregisterTimeout)
	defer cancel()
	if _, err := client.Deregister(ctx, &pb.DeregisterGatewayRequest{Lan: c.cfg.LAN, Wan: c.cfg.WAN}); err != nil {
		c.cfg.Logger.Warn("cannot deregister: other datacenters use this gateway until its heartbeat times out",
			"err", err)
		return
	}
	c.cfg.Logger.Info("deregistered")
}

// Status describes the source of the routes.
type Status struct {
	// Server is the address of the server in use. Empty: none.
	Server string
	// Registered is the time of the last acknowledged heartbeat.
	Registered time.Time
	// SnapshotAt is the time at which the snapshot in use was received. It is
	// zero for a snapshot from disk, and without a snapshot.
	SnapshotAt time.Time
	// HasSnapshot is true when the gateway has routes.
	HasSnapshot bool
	// FromDisk is true when the routes come from the snapshot on disk.
	FromDisk bool
	// LastError is the last failure, and LastErrorAt its time.
	LastError   string
	LastErrorAt time.Time
}

// warnInterval is the interval at which a persistent failure is logged at Warn.
const warnInterval = time.Minute

// warning is the last line at Warn about a failure.
type warning struct {
	text string
	at   time.Time
}

// Status returns the current status.
func (c *Client) Status() Status {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.status
}

// failed records and logs a failure. It logs at Warn when the error changes and
// once per warnInterval, otherwise at Debug.
func (c *Client) failed(message string, err error) {
	now := time.Now()
	c.mu.Lock()
	text := status.Convert(err).Message()
	if c.dialErr != nil && status.Code(err) == codes.Unavailable {
		text = c.dialErr.Error() // text has it in quotes
	}
	text = strings.ReplaceAll(text, "\n", "; ")
	c.status.LastError, c.status.LastErrorAt = message+": "+text, now
	level, last := slog.LevelDebug, c.warned[message]
	if last.text != text || now.Sub(last.at) >= warnInterval {
		level, c.warned[message] = slog.LevelWarn, warning{text, now}
	}
	c.mu.Unlock()
	c.cfg.Logger.Log(context.Background(), level, message, "err", text)
}

// worked records the end of a failure.
func (c *Client) worked(message string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	delete(c.warned, message)
}
