// SPDX-License-Identifier: MPL-2.0

package server

import (
	"context"
	"errors"
	"net"
	"sync"
	"sync/atomic"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/connectivity"

	"github.com/wanfed/wanfed/api"
	"github.com/wanfed/wanfed/wanfed"
)

// conns holds one gRPC connection per server of the own datacenter, and one per other datacenter that is called now, to any server
// there. They are keyed by datacenter and node, never by address. Those to other datacenters are streams of the tunnel's
// sessions: a server has at most two TLS connections to each, the packet link and the session.
//
// A connection to another datacenter is closed when nobody has called for idleAfter. Two kinds are kept open: to the primary, and
// to a datacenter that cannot be reached, which is dialed until it can be, so that this shows at once (redial.contacts).
type conns struct {
	tunnel  *wanfed.Tunnel
	dialer  *wanfed.Dialer
	book    *wanfed.SharedAddressBook
	primary string
	*redial

	mu     sync.Mutex
	closed bool
	byName map[connKey]*conn
	old    sync.WaitGroup // connections that were given up and drain
	stop   chan struct{}  // closed at the end: drains are cut short
	kept   sync.WaitGroup // keep, moveOn
}

type connKey struct{ dc, node string }

// conn is a gRPC connection.
type conn struct {
	*grpc.ClientConn
	key  connKey
	over atomic.Pointer[wanfed.GRPCConn] // the last one dialed; nil in the own datacenter
	life context.Context                 // ends when the connection is given up. Stored, since it is the conn's own and no call's
	end  context.CancelFunc
}

const (
	// idleAfter is how long a connection to another datacenter stays open without a call: questions of people and of their tools come
	// in bursts of minutes. To open it anew costs a round trip while the tunnel's session is there, a minute longer, and then a TLS
	// handshake.
	idleAfter = 2 * time.Minute
	// lostAfter is how long no way to a datacenter has worked before it is dialed for its own sake: links that lost one of their ways
	// take another by themselves meanwhile.
	lostAfter = time.Second
)

func newConns(own, primary string, t *wanfed.Tunnel, d *wanfed.Dialer, b *wanfed.SharedAddressBook) *conns {
	return &conns{
		tunnel: t, dialer: d, book: b, primary: primary, redial: newRedial(own, b), byName: map[connKey]*conn{}, stop: make(chan struct{}),
	}
}

var errStopping = errors.New("server is stopping")

// to returns the connection to a server; node "" is any server of dc. It does not dial: the first call does.
func (c *conns) to(dc, node string) (*conn, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.closed {
		return nil, errStopping
	}
	key := connKey{dc, node}
	if cc := c.byName[key]; cc != nil {
		return cc, nil
	}
	return c.addLocked(key)
}

// addLocked makes the connection of key.
func (c *conns) addLocked(key connKey) (*conn, error) {
	cc := &conn{key: key}
	cc.life, cc.end = context.WithCancel(context.Background())
	idle := idleAfter
	if key.dc == c.own || key.dc == c.primary {
		idle = 0 // never
	}
	var err error
	cc.ClientConn, err = api.NewGRPCClient(func(ctx context.Context) (nc net.Conn, err error) {
		err = c.redial.do(ctx, key, func(ctx context.Context) (err error) {
			nc, err = c.dial(ctx, cc)
			return err
		})
		return nc, err
	}, dialAtOnce, grpc.WithIdleTimeout(idle))
	if err != nil {
		return nil, err
	}
	c.byName[key] = cc
	if key.dc != c.own {
		c.kept.Go(func() { c.keep(cc) })
	}
	return cc, nil
}

func (c *conns) dial(ctx context.Context, cc *conn) (net.Conn, error) {
	if cc.key.dc == c.own {
		t, err := c.dialer.Dial(ctx, wanfed.Target{DC: cc.key.dc, Node: cc.key.node}, wanfed.ProtoGRPC)
		if err != nil {
			return nil, err // a typed nil would not be nil
		}
		return t, nil
	}
	t, err := c.tunnel.DialGRPC(ctx, cc.key.dc)
	if err != nil {
		return nil, err
	}
	c.mu.Lock()
	closed := c.closed
	if !closed { // else nobody would join moveOn
		cc.over.Store(t)
		c.kept.Go(func() { c.moveOn(cc, t) })
	}
	c.mu.Unlock()
	if closed {
		return nil, errors.Join(errStopping, t.Close())
	}
	return newEager(t), nil
}

// moveOn makes the next calls take another connection when t's session has found a better way.
func (c *conns) moveOn(cc *conn, t *wanfed.GRPCConn) {
	select {
	case <-t.Migrated():
		if !t.IsClosed() && cc.over.Load() == t { // else gRPC sees it by itself
			c.giveUp(cc, drainGrace)
		}
	case <-cc.life.Done():
	}
}

// moveTo makes the session to another datacenter go to a certain server there, if it can be had: moveOn follows.
func (c *conns) moveTo(dc, node string) {
	if cc, err := c.to(dc, ""); err == nil {
		if t := cc.over.Load(); t != nil {
			t.PinTo(node)
		}
	}
}

// keep connects cc whenever it is not, as long as it is to be kept, until it is given up. When it is not, and falls idle, keep gives it
// up.
func (c *conns) keep(cc *conn) {
	if c.keeps(cc.key.dc) {
		cc.Connect()
	}
	for state := cc.GetState(); cc.WaitForStateChange(cc.life, state); {
		if state = cc.GetState(); state != connectivity.Idle {
			continue
		}
		if !c.keeps(cc.key.dc) {
			c.giveUp(cc, drainGrace) // a call that has just begun may be answered
			return
		}
		cc.Connect()
	}
}

// keeps says whether a connection to another datacenter is kept open.
func (c *conns) keeps(dc string) bool { return dc == c.primary || c.isLost(dc) }

// Run follows the address book, and what the tunnel finds out about ways, until ctx ends, and then closes all connections.
func (c *conns) Run(ctx context.Context) error {
	old, since := &wanfed.AddressBook{}, map[string]time.Time{} // since when datacenters cannot be reached
	for {
		changed := c.book.Changed()
		now := c.book.Load()
		c.routesChanged(old, now)
		c.forget(old, now)
		old = now
		gone, health := c.dialer.Unreachable()
		keep, wait := c.lost(since, gone, time.Now())
		if len(now.Paths[c.primary]) > 0 && c.primary != c.own {
			keep = append(keep, c.primary)
		}
		for _, dc := range keep {
			cc, err := c.to(dc, "")
			if err != nil {
				return errors.Join(err, c.close())
			}
			cc.Connect()
		}
		timer := time.NewTimer(wait)
		select {
		case <-changed:
		case <-health:
		case <-timer.C:
		case <-ctx.Done():
			timer.Stop()
			return c.close()
		}
		timer.Stop()
	}
}

// forget gives up connections to datacenters that were deleted: nobody is to dial them for ever.
func (c *conns) forget(old, now *wanfed.AddressBook) {
	for _, cc := range c.all() {
		if dc := cc.key.dc; dc != c.own && len(now.Paths[dc]) == 0 && len(old.Paths[dc]) > 0 {
			c.giveUp(cc, 0)
		}
	}
}

// lost brings since level with the datacenters that cannot be reached now. It returns those to dial, and how long until there may be
// more. Those that can be reached again are news.
func (c *conns) lost(since map[string]time.Time, gone []string, now time.Time) (dial []string, wait time.Duration) {
	wait = time.Hour
	still := map[string]bool{}
	for _, dc := range gone {
		still[dc] = true
		if since[dc].IsZero() {
			since[dc] = now
		}
		if left := lostAfter - now.Sub(since[dc]); left > 0 {
			wait = min(wait, left)
			continue
		}
		c.reached(dc, false)
		dial = append(dial, dc)
	}
	for dc := range since {
		if !still[dc] {
			delete(since, dc)
			c.reached(dc, true)
			c.heardOf(dc)
		}
	}
	return dial, wait
}

// giveUp makes the next call use a connection that is dialed anew. Calls under way on cc may finish within grace; streams on it end.
func (c *conns) giveUp(cc *conn, grace time.Duration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.byName[cc.key] != cc || c.closed { // somebody was faster
		return
	}
	delete(c.byName, cc.key)
	if c.keeps(cc.key.dc) && len(c.book.Load().Paths[cc.key.dc]) > 0 {
		_, _ = c.addLocked(cc.key)
	}
	cc.end()
	c.old.Go(func() {
		timer := time.NewTimer(grace)
		defer timer.Stop()
		select {
		case <-timer.C:
		case <-c.stop:
		}
		_ = cc.Close() // calls still on it are told that it is closing
	})
}

func (c *conns) all() []*conn {
	c.mu.Lock()
	defer c.mu.Unlock()
	out := make([]*conn, 0, len(c.byName))
	for _, cc := range c.byName {
		out = append(out, cc)
	}
	return out
}

func (c *conns) close() error {
	c.mu.Lock()
	c.closed = true
	close(c.stop)
	c.mu.Unlock()
	c.old.Wait()
	var errs []error
	for _, cc := range c.all() {
		cc.end()
		errs = append(errs, cc.Close())
	}
	c.kept.Wait()
	return errors.Join(errs...)
}
