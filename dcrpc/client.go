// SPDX-License-Identifier: MPL-2.0

package dcrpc

import (
	"context"
	"errors"
	"maps"
	"net"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sync/singleflight"
	"google.golang.org/grpc"
	grpcbackoff "google.golang.org/grpc/backoff"
	"google.golang.org/grpc/connectivity"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	"github.com/wanfed/wanfed/api"
	"github.com/wanfed/wanfed/internal/backoff"
	"github.com/wanfed/wanfed/internal/broadcast"
	"github.com/wanfed/wanfed/internal/tracing"
	"github.com/wanfed/wanfed/wanfed"
)

const (
	// idleTimeout is the time without a call after which a connection to
	// another datacenter is closed.
	idleTimeout = 30 * time.Second
	// drainTimeout is the time in which calls on a replaced connection must
	// finish.
	drainTimeout = 30 * time.Second
	// deadTimeout is the grace period of writes on a connection that failed its
	// health check. A machine may pause for longer than a health check lasts,
	// and the outcome of an interrupted write is unknown.
	deadTimeout = 2 * time.Second

	minBackoff    = 50 * time.Millisecond
	maxBackoff    = 2 * time.Second        // to other datacenters
	maxLANBackoff = 500 * time.Millisecond // to servers of the local datacenter
)

var errStopping = errors.New("server is stopping")

// Config configures a Client. All fields except Epoch and Learn are required.
type Config struct {
	DC        string // the local datacenter
	PrimaryDC string // the connection to the primary is kept open
	Tunnel    *wanfed.Tunnel
	Dialer    *wanfed.Dialer
	Book      *wanfed.SharedAddressBook
	// Epoch returns the value of the metadata api.EpochKey in calls to other
	// datacenters. "" sends none. Default: none.
	Epoch func() string
	// Learn is called with the metadata api.EpochKey in the response of a
	// server of another datacenter. It must not block. Default: ignored.
	Learn func(epoch, dc string)
}

// Client holds gRPC connections to other servers: see the package
// documentation.
type Client struct {
	cfg    Config
	events broadcast.Keyed[string] // by datacenter; the package documentation lists the events
	reach  *reachability

	streamsMu  sync.Mutex
	streams    map[string]*requestStream // by datacenter
	nextStream map[string]time.Time      // by datacenter: earliest time to open a stream

	ctx  context.Context // ends when Run ends, for background work that belongs to no call
	stop context.CancelFunc

	mu      sync.Mutex
	closed  bool
	conns   map[connKey]*conn
	running sync.WaitGroup // goroutines; none is added after closed is set
}

// connKey identifies a connection. An empty node stands for any server of the
// datacenter.
type connKey struct{ dc, node string }

// conn is a gRPC connection. It is replaced, not repaired, when its path is
// dead or a better path was found.
type conn struct {
	*grpc.ClientConn
	key        connKey
	maxBackoff time.Duration   // maximum pause between dials
	retired    context.Context // ends when conn is replaced
	retire     context.CancelFunc
	dead       atomic.Bool // the last health check had no response; set before retired ends
	checks     singleflight.Group

	stream atomic.Pointer[wanfed.GRPCConn] // the last dialed stream; nil in the local datacenter

	dialing  sync.Mutex      // held during a dial; guards failures and event
	failures int             // number of failed dials in a row
	event    <-chan struct{} // closed by the first event after the start of the last dial
}

// New returns a Client. The Client connects with the first call. Calls require
// that Run is running.
func New(cfg Config) *Client {
	c := &Client{
		cfg: cfg, reach: newReachability(), conns: map[connKey]*conn{},
		streams: map[string]*requestStream{}, nextStream: map[string]time.Time{},
	}
	c.ctx, c.stop = context.WithCancel(context.Background())
	return c
}

// Server returns the connection to a server of the local datacenter. The first
// call on the connection dials the server.
func (c *Client) Server(node string) (grpc.ClientConnInterface, error) {
	cc, err := c.conn(connKey{c.cfg.DC, node})
	if err != nil {
		return nil, err
	}
	return cc, nil
}

// Ping waits until any server of dc responds, or ctx ends.
func (c *Client) Ping(ctx context.Context, dc string) error {
	cc, err := c.conn(connKey{dc: dc})
	if err != nil {
		return err
	}
	_, err = healthpb.NewHealthClient(cc).Check(ctx, &healthpb.HealthCheckRequest{}, grpc.WaitForReady(true))
	return err
}

// PeerConnected reports to the Client that a server of dc has connected to this
// server. The path probably works in both directions. The Client therefore
// dials dc at once if it waits to do so.
func (c *Client) PeerConnected(dc string) { c.events.Notify(dc) }

// Reachability returns the reachability of each called datacenter, and a
// channel that is closed at the next change.
func (c *Client) Reachability() (map[string]Reachability, <-chan struct{}) { return c.reach.load() }

// spawn runs f in a goroutine that Run joins. If the Client is closed, spawn
// does nothing and returns false.
func (c *Client) spawn(f func()) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.closed {
		return false
	}
	c.running.Go(f)
	return true
}

// conn returns the connection of key. It adds a connection if there is none.
func (c *Client) conn(key connKey) (*conn, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.closed {
		return nil, errStopping
	}
	if cc := c.conns[key]; cc != nil {
		return cc, nil
	}
	return c.addLocked(key)
}

func (c *Client) addLocked(key connKey) (*conn, error) {
	cc := &conn{key: key, maxBackoff: maxBackoff}
	cc.retired, cc.retire = context.WithCancel(context.Background())
	idle := idleTimeout
	if key.dc == c.cfg.DC || key.dc == c.cfg.PrimaryDC {
		idle = 0 // never
	}
	if key.dc == c.cfg.DC {
		cc.maxBackoff = maxLANBackoff
	}
	dial := func(ctx context.Context) (net.Conn, error) { return c.redial(ctx, cc, c.dial) }
	options := []grpc.DialOption{grpc.WithIdleTimeout(idle), dialAtOnce}
	if c.cfg.Epoch != nil && key.dc != c.cfg.DC {
		options = append(options, grpc.WithUnaryInterceptor(c.exchangeEpochs(key.dc)), grpc.WithStreamInterceptor(c.sendEpochStream))
	}
	if tracing.Enabled() {
		options = append(options, grpc.WithChainUnaryInterceptor(traceCall))
	}
	var err error
	if cc.ClientConn, err = api.NewGRPCClient(dial, options...); err != nil {
		cc.retire()
		return nil, err
	}
	c.conns[key] = cc
	if key.dc != c.cfg.DC {
		c.running.Go(func() { c.watchState(cc) })
	}
	return cc, nil
}

// traceCall is an interceptor that records the span of a call, and passes it to
// the other server.
func traceCall(
	ctx context.Context, method string, req, reply any, cc *grpc.ClientConn, next grpc.UnaryInvoker,
	opts ...grpc.CallOption,
) error {
	ctx, span := tracing.StartCall(ctx, method)
	if header := tracing.HeaderOf(ctx); header != "" {
		ctx = metadata.AppendToOutgoingContext(ctx, tracing.Header, header)
	}
	err := next(ctx, method, req, reply, cc, opts...)
	span.Set(tracing.GRPCCode, status.Code(err).String())
	span.End(err != nil)
	return err
}

// exchangeEpochs returns an interceptor that adds the epoch to the metadata of a
// call to dc, and records the epoch in the response, also of a failed call.
func (c *Client) exchangeEpochs(dc string) grpc.UnaryClientInterceptor {
	return func(
		ctx context.Context, method string, req, reply any, cc *grpc.ClientConn, next grpc.UnaryInvoker,
		opts ...grpc.CallOption,
	) error {
		var header metadata.MD
		err := next(c.withEpoch(ctx), method, req, reply, cc, append(opts, grpc.Header(&header))...)
		if epoch := header.Get(api.EpochKey); len(epoch) > 0 && c.cfg.Learn != nil {
			c.cfg.Learn(epoch[0], dc)
		}
		return err
	}
}

// sendEpochStream adds the epoch to the metadata of a stream.
func (c *Client) sendEpochStream(
	ctx context.Context, d *grpc.StreamDesc, cc *grpc.ClientConn, method string, next grpc.Streamer,
	opts ...grpc.CallOption,
) (grpc.ClientStream, error) {
	return next(c.withEpoch(ctx), d, cc, method, opts...)
}

func (c *Client) withEpoch(ctx context.Context) context.Context {
	if epoch := c.cfg.Epoch(); epoch != "" {
		return metadata.AppendToOutgoingContext(ctx, api.EpochKey, epoch)
	}
	return ctx
}

// dialAtOnce makes gRPC repeat a failed dial after 5 ms, because redial has its
// own backoff.
var dialAtOnce = grpc.WithConnectParams(grpc.ConnectParams{
	Backoff: grpcbackoff.Config{BaseDelay: 5 * time.Millisecond, Multiplier: 1,
		MaxDelay: 5 * time.Millisecond},
	MinConnectTimeout: 15 * time.Second,
})

// keepsOpen reports whether the Client connects to another datacenter without a
// call: to the primary, and to unreachable datacenters if they are few. The
// connection detects at once that a datacenter is reachable again.
func (c *Client) keepsOpen(dc string) bool { return dc == c.cfg.PrimaryDC || c.reach.isOneOfFew(dc) }

// watchState records whether cc works, until cc is replaced. It reconnects cc
// if keepsOpen is true for the datacenter, and otherwise replaces an idle cc.
func (c *Client) watchState(cc *conn) {
	dc := cc.key.dc
	for state, first := cc.GetState(), true; ; first = false {
		switch state {
		case connectivity.Ready:
			c.reach.set(dc, true)
		case connectivity.TransientFailure:
			c.reach.set(dc, false)
		case connectivity.Idle:
			if c.keepsOpen(dc) {
				cc.Connect()
			} else if !first {
				c.replace(cc, drainTimeout) // with a drain, because a call may just have begun
				return
			}
		}
		if !cc.WaitForStateChange(cc.retired, state) {
			return
		}
		state = cc.GetState()
	}
}

// followSession replaces cc when its session has moved to a better path. New
// streams of the session then use another connection.
func (c *Client) followSession(cc *conn, s *wanfed.GRPCConn) {
	select {
	case <-s.Migrated():
		if !s.IsClosed() && cc.stream.Load() == s { // gRPC itself detects a closed stream
			c.replace(cc, drainTimeout)
		}
	case <-cc.retired.Done():
	}
}

// replace makes the next call use a new connection. Calls in flight on cc may
// finish within drain. If cc is dead and stays without a response for
// deadTimeout, the calls end. Streams on cc end at once.
func (c *Client) replace(cc *conn, drain time.Duration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.conns[cc.key] != cc || c.closed {
		return
	}
	delete(c.conns, cc.key)
	if c.keepsOpen(cc.key.dc) && len(c.cfg.Book.Load().Paths[cc.key.dc]) > 0 {
		_, _ = c.addLocked(cc.key)
	}
	cc.retire()
	c.running.Go(func() {
		if !cc.dead.Load() || c.healthy(cc, deadTimeout) {
			backoff.Sleep(c.ctx, drain, nil)
		}
		_ = cc.Close() // fails calls in flight with codes.Canceled
	})
}

// Disconnect makes the next call to another datacenter use a new connection.
// Calls in flight fail with codes.Canceled. The caller uses Disconnect when
// another datacenter with the same name has replaced that datacenter.
func (c *Client) Disconnect(dc string) {
	c.cfg.Tunnel.Disconnect(dc)
	for _, cc := range c.all() {
		if cc.key.dc == dc {
			c.replace(cc, 0)
		}
	}
}

func (c *Client) all() []*conn {
	c.mu.Lock()
	defer c.mu.Unlock()
	return slices.Collect(maps.Values(c.conns))
}

// Run watches the address book and the health of paths until ctx ends. Then it
// closes all connections.
func (c *Client) Run(ctx context.Context) error {
	old, failingSince := &wanfed.AddressBook{}, map[string]time.Time{}
	for {
		bookChanged := c.cfg.Book.Changed()
		book := c.cfg.Book.Load()
		c.bookChanged(old, book)
		old = book
		failing, healthChanged := c.cfg.Dialer.Unreachable()
		connect, wait := c.updateUnreachable(failingSince, failing, time.Now())
		if len(connect) > maxKeptOpen {
			connect = nil
		}
		if len(book.Paths[c.cfg.PrimaryDC]) > 0 && c.cfg.PrimaryDC != c.cfg.DC {
			connect = append(connect, c.cfg.PrimaryDC)
		}
		for _, dc := range connect {
			cc, err := c.conn(connKey{dc: dc})
			if err != nil {
				return errors.Join(err, c.close())
			}
			cc.Connect()
		}
		select {
		case <-bookChanged:
		case <-healthChanged:
		case <-time.After(wait):
		case <-ctx.Done():
			return c.close()
		}
	}
}

func (c *Client) close() error {
	c.mu.Lock()
	c.closed = true
	c.mu.Unlock()
	c.stop()
	var errs []error
	for _, cc := range c.all() {
		cc.retire()
		errs = append(errs, cc.Close())
	}
	c.running.Wait()
	return errors.Join(errs...)
}
