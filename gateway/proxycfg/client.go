// SPDX-License-Identifier: MPL-2.0

package proxycfg

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"os"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sync/errgroup"
	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"
	"google.golang.org/protobuf/proto"

	"github.com/wanfed/wanfed/api"
	"github.com/wanfed/wanfed/api/pb"
	"github.com/wanfed/wanfed/gateway"
	"github.com/wanfed/wanfed/tlsutil"
)

// Config of a Client.
type Config struct {
	// Identity is the gateway's; its certificate says which gateway of which datacenter this is. Required.
	Identity *tlsutil.Identity
	// Servers are addresses (host:port) of servers of the datacenter: at least one. Servers of the last snapshot join them.
	Servers []string
	// LAN and WAN are the addresses (host:port) that servers here, and other datacenters, dial. Required.
	LAN, WAN string
	// UpstreamOptions says how this datacenter's servers are reached.
	Upstream UpstreamOptions
	// DataDir keeps the last snapshot. Required; made with mode 0700 if absent.
	DataDir string
	// LANListener and WANListener get the tables. Required.
	LANListener, WANListener *gateway.Listener
	// Logger. Required.
	Logger *slog.Logger
}

// Client is a gateway's connection to the servers of its datacenter.
type Client struct {
	cfg       Config
	servers   *servers
	dialer    *gateway.Dialer
	connected chan struct{} // a wake-up: there is a new connection
	routed    chan struct{} // closed when there are routes
	keep      atomic.Bool   // another process is this gateway by now

	mu     sync.Mutex
	status Status
	snap   *pb.GatewaySnapshot // the last applied
	warned map[string]warning  // by what failed
	noDial error               // why no server could be reached; nil while one could
}

const (
	callTimeout       = 5 * time.Second // less than the servers' patience with a silent gateway
	deregisterTimeout = 2 * time.Second
	minBackoff        = 50 * time.Millisecond
	routesWait        = time.Second
	maxBackoff        = time.Second
)

// redial makes a gateway find a server that is back soon: it is a near one.
var redial = grpc.WithConnectParams(grpc.ConnectParams{
	Backoff:           backoff.Config{BaseDelay: minBackoff, Multiplier: 1.6, Jitter: 0.2, MaxDelay: 500 * time.Millisecond},
	MinConnectTimeout: 10 * time.Second,
})

// New checks cfg, loads the snapshot on disk, if any, and sets both tables by it. It connects to nothing.
func New(cfg Config) (*Client, error) {
	switch {
	case cfg.Identity == nil || cfg.LANListener == nil || cfg.WANListener == nil || cfg.Logger == nil || cfg.DataDir == "":
		return nil, errors.New("proxycfg: Identity, DataDir, LANListener, WANListener and Logger are required")
	case len(cfg.Servers) == 0:
		return nil, errors.New("no server is named: a gateway needs the address of at least one server of its datacenter")
	}
	if err := os.MkdirAll(cfg.DataDir, 0o700); err != nil {
		return nil, fmt.Errorf("make data_dir: %w; give a --data-dir that this user may write", err)
	}
	c := &Client{
		cfg: cfg, servers: &servers{configured: cfg.Servers}, dialer: newDialer(cfg.Identity, cfg.Upstream.ProxyProtocol),
		connected: make(chan struct{}, 1), routed: make(chan struct{}), warned: map[string]warning{},
	}
	c.loadDisk()
	return c, nil
}

func (c *Client) loadDisk() {
	snap, err := loadSnapshot(c.cfg.DataDir)
	if err == nil && snap != nil {
		err = c.checkOwn(snap)
	}
	if err != nil {
		c.cfg.Logger.Warn("snapshot on disk is not used", "err", err)
		return
	}
	if snap != nil {
		c.use(snap)
		c.mu.Lock()
		c.status.FromDisk = true
		c.mu.Unlock()
		c.cfg.Logger.Info("routing by the snapshot on disk until a server answers",
			"servers", len(snap.Servers), "datacenters", len(snap.Datacenters))
	}
}

// checkOwn refuses a snapshot of another datacenter or domain.
func (c *Client) checkOwn(snap *pb.GatewaySnapshot) error {
	dc, domain := c.cfg.Identity.Peer().DC, c.cfg.Identity.Domain()
	if snap.Datacenter != dc || snap.Domain != domain {
		return fmt.Errorf("it is of datacenter %q and domain %q, this gateway of %q and %q", snap.Datacenter, snap.Domain, dc, domain)
	}
	return nil
}

// Routed is closed when there are routes, from disk or from a server.
func (c *Client) Ready() <-chan struct{} { return c.routed }

// Keep has Run end without deregistering: another process stands for this gateway from now on. It may be called while Run runs.
func (c *Client) SkipDeregister() { c.keep.Store(true) }

// Run registers and follows until ctx ends, then deregisters (2 s at most) and returns nil. It may be called once.
func (c *Client) Run(ctx context.Context) error {
	cc, err := api.NewGRPCClient(c.dial, redial)
	if err != nil {
		return err
	}
	defer c.dialer.Wait()
	defer cc.Close()
	g, gctx := errgroup.WithContext(ctx)
	g.Go(func() error { return c.register(gctx, pb.NewGatewayServiceClient(cc)) })
	g.Go(func() error { return c.follow(gctx, pb.NewGatewayServiceClient(cc)) })
	err = g.Wait()
	if !c.keep.Load() {
		c.deregister(ctx, pb.NewGatewayServiceClient(cc))
	}
	return err
}

// register is the heartbeat: one as soon as there are routes, since servers dial a gateway at once when it registers, then one
// each interval, and one for each new connection.
func (c *Client) register(ctx context.Context, client pb.GatewayServiceClient) error {
	wait := time.NewTimer(routesWait)
	defer wait.Stop()
	select {
	case <-c.routed:
	case <-wait.C: // the call will say what is wrong
	case <-ctx.Done():
		return nil
	}
	pause, known := minBackoff, false
	for {
		cctx, cancel := context.WithTimeout(ctx, callTimeout)
		resp, err := client.Register(cctx, &pb.RegisterGatewayRequest{Lan: c.cfg.LAN, Wan: c.cfg.WAN})
		cancel()
		next := pause + rand.N(pause/4)
		switch {
		case ctx.Err() != nil:
			return nil
		case err != nil:
			c.failed("cannot register", err)
			pause, known = min(2*pause, maxBackoff), false
		default:
			select {
			case <-c.connected: // the call itself made the connection
			default:
			}
			interval := max(resp.GetInterval().AsDuration(), 100*time.Millisecond)
			next, pause = interval-rand.N(interval/10), minBackoff
			c.worked("cannot register")
			if !known {
				c.cfg.Logger.Info("registered", "lan", c.cfg.LAN, "wan", c.cfg.WAN, "interval", interval)
			}
			known = true
			c.mu.Lock()
			c.status.Registered = time.Now()
			c.mu.Unlock()
		}
		switch woken := sleep(ctx, next, c.connected); {
		case ctx.Err() != nil:
			return nil
		case woken:
			pause = minBackoff // gRPC may not use the new connection yet: try again soon
		}
	}
}

// follow applies snapshots as they come.
func (c *Client) follow(ctx context.Context, client pb.GatewayServiceClient) error {
	pause := minBackoff
	for {
		err := c.watch(ctx, client, func() { pause = minBackoff })
		if ctx.Err() != nil {
			return nil
		}
		c.failed("cannot follow snapshots", err)
		if sleep(ctx, pause+rand.N(pause/4), nil); ctx.Err() != nil {
			return nil
		}
		pause = min(2*pause, maxBackoff)
	}
}

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
		c.worked("cannot follow snapshots")
		if err := c.checkOwn(snap); err != nil {
			return fmt.Errorf("snapshot refused: %w", err)
		}
		c.apply(snap)
	}
}

// apply uses a snapshot and keeps it on disk.
func (c *Client) apply(snap *pb.GatewaySnapshot) {
	c.mu.Lock()
	same := !c.status.FromDisk && proto.Equal(c.snap, snap)
	early := len(snap.Servers) == 0 && len(c.snap.GetServers()) > 0
	c.mu.Unlock()
	if same {
		return
	}
	if early { // not even the server that sent it is in it
		c.cfg.Logger.Debug("snapshot of a server that has just started is not used")
		return
	}
	c.use(snap)
	c.mu.Lock()
	c.status.FromDisk = false
	c.status.SnapshotAt = time.Now()
	c.mu.Unlock()
	c.cfg.Logger.Info("routes changed", "servers", len(snap.Servers), "datacenters", len(snap.Datacenters))
	if err := saveSnapshot(c.cfg.DataDir, snap); err != nil {
		c.failed("snapshot not kept on disk", err)
	}
}

func (c *Client) use(snap *pb.GatewaySnapshot) {
	lan, wan, faults := Tables(snap, c.cfg.Upstream)
	for _, err := range faults {
		c.cfg.Logger.Warn("left out of the routes", "err", err)
	}
	c.cfg.LANListener.SetTable(lan)
	c.cfg.WANListener.SetTable(wan)
	var addrs []string
	for _, s := range snap.Servers {
		if gateway.CheckAddr(s.Address) == nil {
			addrs = append(addrs, s.Address)
		}
	}
	c.servers.learn(addrs)
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.snap == nil {
		close(c.routed)
	}
	c.snap = snap
	c.status.HasSnapshot = true
}

// deregister tells the servers that this gateway stops, after ctx has ended.
func (c *Client) deregister(ctx context.Context, client pb.GatewayServiceClient) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), deregisterTimeout)
	defer cancel()
	if _, err := client.Deregister(ctx, &pb.DeregisterGatewayRequest{}); err != nil {
		c.cfg.Logger.Warn("not deregistered: other datacenters use this gateway until its heartbeat is missed", "err", err)
		return
	}
	c.cfg.Logger.Info("deregistered")
}

// sleep waits for d or for a wake-up, or until ctx ends. It says whether it was woken.
func sleep(ctx context.Context, d time.Duration, wake <-chan struct{}) bool {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-wake:
		return true
	case <-t.C:
	case <-ctx.Done():
	}
	return false
}
