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
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/protobuf/proto"

	"github.com/wanfed/wanfed/api"
	consulapi "github.com/wanfed/wanfed/api/consul"
	"github.com/wanfed/wanfed/api/pb"
	"github.com/wanfed/wanfed/gateway"
	"github.com/wanfed/wanfed/internal/backoff"
	"github.com/wanfed/wanfed/internal/netaddr"
	"github.com/wanfed/wanfed/tlsutil"
	"github.com/wanfed/wanfed/wanfed"
)

// Config configures a Client.
type Config struct {
	// Identity has the certificate of the gateway, which names the gateway and
	// its datacenter. Required without Consul.
	Identity *tlsutil.Identity
	// Servers are addresses (host:port) of servers of the datacenter, at least
	// one. The addresses in the last snapshot are also used. Not used with
	// Consul.
	Servers []string
	// Consul replaces Identity and Servers: the gateway is a mesh gateway of
	// Consul. Nil: it is a gateway of wanfed's servers.
	Consul *Consul
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
	// Call calls other services of the servers with the connection of the
	// Client, while Run runs, until ctx ends. Not used with Consul. Nil: none.
	Call func(ctx context.Context, servers grpc.ClientConnInterface)
	// Logger receives log lines. Required.
	Logger *slog.Logger
}

// Client connects a gateway to the servers of its datacenter.
type Client struct {
	cfg            Config
	dc, node       string // of this gateway
	domain         string
	control        controlPlane
	inputs         Inputs
	manager        *Manager
	verifier       *verifier     // nil with Consul
	trials         *headerTrials // nil with Consul, and if another program forwards the connections
	connected      chan struct{} // size 1: a new connection wakes the heartbeat
	ready          chan struct{} // closed when the gateway has routes
	registered     chan struct{} // closed when the gateway has registered
	skipDeregister atomic.Bool
	applied        *Snapshot // of the tables; only the goroutine of New and then applySnapshots use it

	mu     sync.Mutex
	status Status
	// unapplied are trusted CAs that could not be applied.
	unapplied *tlsutil.SignedTrust
	snap      *pb.GatewaySnapshot // the last message of a server, or the one on disk
	addrs     []string            // addresses of the servers of snap, in random order
	warned    map[string]warning  // by the message that was logged
}

// A controlPlane registers the gateway of a Client and delivers its snapshots.
type controlPlane interface {
	// open prepares the calls of all other methods. Run calls close at its end.
	open() error
	close()
	// follow calls Client.apply for each snapshot until ctx ends.
	follow(ctx context.Context)
	// register registers the gateway, or confirms that it runs. It returns the
	// time after which the next call is due.
	register(ctx context.Context) (time.Duration, error)
	deregister(ctx context.Context) error
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

// New checks cfg and applies the snapshot on disk, if there is one. It connects
// to nothing.
func New(cfg Config) (*Client, error) {
	switch {
	case cfg.Identity == nil && cfg.Consul == nil || cfg.Logger == nil || cfg.DataDir == "":
		return nil, errors.New("proxycfg: Identity or Consul, DataDir and Logger are required")
	case (cfg.LANListener == nil) != (cfg.WANListener == nil):
		return nil, errors.New("proxycfg: LANListener and WANListener are required, or neither")
	case len(cfg.Servers) == 0 && cfg.Consul == nil:
		return nil, errors.New(
			"no server is given: a gateway needs the address of at least one server of its datacenter")
	}
	if err := os.MkdirAll(cfg.DataDir, 0o700); err != nil {
		return nil, fmt.Errorf("create data_dir: %w; set --data-dir to a directory that this user may write", err)
	}
	c := &Client{
		cfg: cfg, connected: make(chan struct{}, 1), ready: make(chan struct{}),
		registered: make(chan struct{}), warned: map[string]warning{},
	}
	if cfg.Consul != nil {
		c.dc, c.node, c.domain = cfg.Consul.DC, cfg.Consul.Node, cfg.Consul.Domain
		c.control = &consul{Client: c, Consul: *cfg.Consul, ttl: consulTTL, wait: consulWait}
	} else {
		peer := cfg.Identity.Peer()
		c.dc, c.node, c.domain = peer.DC, peer.Node, cfg.Identity.Domain()
		c.control = newRemote(c)
		c.verifier = newVerifier(func(ctx context.Context, t verifyTarget) wanfed.FailureClass {
			return connectGateway(ctx, cfg.Identity, t)
		}, checkGateway, c.wakeHeartbeat, cfg.Logger)
		if cfg.LANListener != nil {
			c.trials = newHeaderTrials(cfg.Identity, cfg.Logger)
		}
	}
	c.loadStored()
	c.manager = NewManager(c.dc, c.domain, &c.inputs)
	if err := c.manager.Register(Registration{Name: c.node, LAN: cfg.LAN, WAN: cfg.WAN}); err != nil {
		return nil, err
	}
	if snap, _ := c.manager.Snapshot(c.node); snap != nil {
		c.setTables(snap)
	}
	return c, nil
}

// loadStored uses the snapshot on disk as input.
func (c *Client) loadStored() {
	snap, at, err := loadSnapshot(c.cfg.DataDir)
	if err == nil && snap != nil {
		err = c.checkOwn(snap)
	}
	switch {
	case err != nil:
		c.cfg.Logger.Warn("snapshot on disk ignored", "err", err)
	case snap != nil:
		c.setInputs(snap, originDisk, confirmed{at, at})
		c.cfg.Logger.Info("routing by the snapshot on disk until a server answers",
			"servers", len(snap.Servers), "datacenters", len(snap.Datacenters), "time", at)
	}
}

// checkOwn refuses a snapshot of another datacenter or domain.
func (c *Client) checkOwn(snap *pb.GatewaySnapshot) error {
	if snap.Datacenter != c.dc || snap.Domain != c.domain {
		return fmt.Errorf("it is of datacenter %q and domain %q, and this gateway is of %q and %q",
			snap.Datacenter, snap.Domain, c.dc, c.domain)
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
	if err := c.control.open(); err != nil {
		return err
	}
	defer c.control.close()
	ctx, stop := context.WithCancelCause(ctx)
	defer stop(nil)
	var loops sync.WaitGroup
	loops.Go(func() { c.keepRegistered(ctx, stop) })
	loops.Go(func() { c.control.follow(ctx) })
	loops.Go(func() { c.manager.Run(ctx) })
	loops.Go(func() { c.applySnapshots(ctx) })
	if r, ok := c.control.(*remote); ok && c.cfg.Call != nil {
		loops.Go(func() { c.cfg.Call(ctx, r.conn) })
	}
	if c.verifier != nil {
		loops.Go(func() {
			c.verifier.run(ctx, func() (*Snapshot, <-chan struct{}) { return c.manager.Snapshot(c.node) })
		})
	}
	if c.trials != nil {
		loops.Go(func() {
			select {
			case <-c.registered:
				c.trials.run(ctx, func() (*Snapshot, <-chan struct{}) { return c.manager.Snapshot(c.node) })
			case <-ctx.Done():
			}
		})
	}
	loops.Wait()
	if err := context.Cause(ctx); errors.Is(err, errNoDataDir) {
		return err
	}
	if !c.skipDeregister.Load() {
		c.endRegistration(ctx)
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

// keepRegistered sends heartbeats. It begins when the gateway has routes,
// because servers dial a gateway as soon as it registers. If a heartbeat fails
// and the data directory was deleted, keepRegistered calls stop: a gateway
// without servers and without stored routes has no use, and would retry
// indefinitely.
func (c *Client) keepRegistered(ctx context.Context, stop context.CancelCauseFunc) {
	backoff.Sleep(ctx, routesTimeout, c.ready) // without routes, Register reports the reason
	retry, registered := backoff.Backoff{Min: minBackoff, Max: maxBackoff}, false
	for ctx.Err() == nil {
		interval, err := c.registerOnce(ctx)
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
			pause, registered = max(retry.Next(), consulapi.RetryAfter(err)), false
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
func (c *Client) registerOnce(ctx context.Context) (time.Duration, error) {
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	interval, err := c.control.register(ctx)
	if err != nil {
		return 0, err
	}
	c.mu.Lock()
	unapplied := c.unapplied
	c.mu.Unlock()
	if unapplied != nil {
		c.applyTrust(unapplied)
	}
	select {
	case <-c.connected: // register caused the connection
	default:
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.status.Registered.IsZero() {
		close(c.registered)
	}
	c.status.Registered = time.Now()
	return interval, nil
}

// apply uses a snapshot of the control plane as input and stores it on disk. It
// returns false if it ignores the snapshot. Only one goroutine may call apply at
// a time.
func (c *Client) apply(snap *pb.GatewaySnapshot, origin string, at confirmed) bool {
	c.mu.Lock()
	same := !c.status.FromDisk && proto.Equal(c.snap, snap)
	early := len(snap.Servers) == 0 && len(c.snap.GetServers()) > 0
	if same {
		c.status.SnapshotAt = at.oldest()
	}
	c.mu.Unlock()
	if same {
		c.inputs.confirm(origin, at)
		return true
	}
	if early { // the snapshot does not even have the server that sent it
		c.cfg.Logger.Debug("snapshot of a server that has just started ignored")
		return false
	}
	c.setInputs(snap, origin, at)
	if err := saveSnapshot(c.cfg.DataDir, snap); err != nil {
		c.failed(cannotStore, err)
	}
	return true
}

// originDisk is the origin of a snapshot on disk.
const originDisk = "disk"

// applyTrust applies the trusted CAs. If that fails, the next heartbeat does it
// again.
func (c *Client) applyTrust(trust *tlsutil.SignedTrust) {
	err := c.cfg.Identity.ApplyTrust(*trust)
	c.mu.Lock()
	defer c.mu.Unlock()
	if err != nil {
		c.cfg.Logger.Error("cannot apply the trusted CAs", "err", err)
		c.unapplied = trust
	} else if c.unapplied == trust {
		c.unapplied = nil
	}
}

// setInputs replaces the inputs of the manager and the addresses of servers.
func (c *Client) setInputs(snap *pb.GatewaySnapshot, origin string, at confirmed) {
	logFaults(c.cfg.Logger, c.inputs.set(snap, origin, at))
	if c.cfg.Identity != nil && len(snap.RevocationLists) > 0 {
		if err := c.cfg.Identity.AddRevocations([]byte(strings.Join(snap.RevocationLists, ""))); err != nil {
			c.cfg.Logger.Warn("revocation list ignored", "origin", origin, "err", err)
		}
	}
	if c.cfg.Identity != nil && snap.Trust != nil {
		c.applyTrust(&tlsutil.SignedTrust{Content: []byte(snap.Trust.Content), Signatures: snap.Trust.Signatures})
	}
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
	c.snap, c.addrs = snap, addrs
	c.status.FromDisk, c.status.SnapshotAt, c.status.Origin = origin == originDisk, at.oldest(), origin
}

// applySnapshots replaces the routes after each change of the snapshot, until
// ctx ends.
func (c *Client) applySnapshots(ctx context.Context) {
	var tried <-chan struct{} // closed after a trial with another result
	for {
		snap, changed := c.manager.Snapshot(c.node)
		proxyTo := c.cfg.Upstream.ProxyTo
		if c.trials != nil {
			proxyTo, tried = c.trials.addrs()
		}
		same := slices.Equal(proxyTo, c.cfg.Upstream.ProxyTo)
		c.cfg.Upstream.ProxyTo = proxyTo
		switch {
		case snap == nil || snap == c.applied && same:
		case snap == c.applied:
			c.setTables(snap)
		default:
			c.setTables(snap)
			c.cfg.Logger.Info("routes changed", "servers", len(snap.Servers), "datacenters", len(snap.Datacenters))
		}
		select {
		case <-changed:
		case <-tried:
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
		c.wakeHeartbeat()
	}
	c.applied, c.status.HasSnapshot = snap, true
}

// endRegistration deregisters the gateway after the end of ctx.
func (c *Client) endRegistration(ctx context.Context) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), deregisterTimeout)
	defer cancel()
	if err := c.control.deregister(ctx); err != nil {
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
	// SnapshotAt is the time at which a server last sent or confirmed the
	// snapshot in use. If it comes from disk, it is the time of its file. It is
	// zero without a snapshot.
	SnapshotAt time.Time
	// Origin names the place that the snapshot comes from.
	Origin string
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

// Source returns the kind of Origin: server, consul or disk.
func (s Status) Source() string {
	kind, _, _ := strings.Cut(s.Origin, " ")
	return kind
}

// setServer records the server in use. Empty: none.
func (c *Client) setServer(addr string) {
	c.mu.Lock()
	changed := c.status.Server != addr
	c.status.Server = addr
	c.mu.Unlock()
	if changed && addr != "" {
		c.cfg.Logger.Info("connected to a server", "addr", addr)
	}
}

// wakeHeartbeat makes the next heartbeat due, because the server in use may not
// have the registration of the gateway, or has an older report of the verifier.
func (c *Client) wakeHeartbeat() {
	select {
	case c.connected <- struct{}{}:
	default:
	}
}

// DialFailed makes the probe of a gateway of another datacenter due, after a
// connection to its address (host:port) has failed or was late. It has no effect
// for other addresses. It does not block.
func (c *Client) DialFailed(addr string) { c.verifier.dialFailed(addr) }

// Report returns the snapshot of the gateway with the origin and the age of its
// parts.
func (c *Client) Report() api.GatewaySnapshot { return c.manager.Report(c.node) }

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
	text := strings.ReplaceAll(err.Error(), "\n", "; ")
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
