// SPDX-License-Identifier: MPL-2.0

package server

import (
	"context"
	"crypto/tls"
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

// conns holds one gRPC connection per server, or per "any server of a datacenter". They are keyed by datacenter and node,
// never by address. There are as many as datacenters and own servers. Those to other datacenters of the address book are
// kept open, so that it shows when one can be reached again (redial.contacts).
type conns struct {
	dialer *wanfed.Dialer
	book   *wanfed.Book
	*redial

	mu     sync.Mutex
	closed bool
	byName map[connKey]*conn
	old    sync.WaitGroup // connections that were given up and drain
	stop   chan struct{}  // closed at the end: drains are cut short
	kept   sync.WaitGroup // keep
}

type connKey struct{ dc, node string }

// conn is a gRPC connection and the TLS connection it goes over.
type conn struct {
	*grpc.ClientConn
	key   connKey
	first atomic.Pointer[tls.Conn] // dialed before gRPC asked
	tls   atomic.Pointer[tls.Conn] // the last one dialed
	life  context.Context          // ends when the connection is given up. Stored, since it is the conn's own and no call's
	end   context.CancelFunc
}

func newConns(own string, d *wanfed.Dialer, b *wanfed.Book) *conns {
	return &conns{dialer: d, book: b, redial: newRedial(own, b), byName: map[connKey]*conn{}, stop: make(chan struct{})}
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
	return c.addLocked(key, nil)
}

// addLocked makes the connection of key. first, if not nil, is what it goes over until that fails.
func (c *conns) addLocked(key connKey, first *tls.Conn) (*conn, error) {
	cc := &conn{key: key}
	cc.life, cc.end = context.WithCancel(context.Background())
	cc.first.Store(first)
	var err error
	cc.ClientConn, err = api.Connect(func(ctx context.Context) (net.Conn, error) {
		t := cc.first.Swap(nil)
		if t == nil {
			err := c.redial.do(ctx, key, func(ctx context.Context) (err error) {
				t, err = c.dialer.Dial(ctx, wanfed.Target{DC: key.dc, Node: key.node}, wanfed.ProtoGRPC)
				return err
			})
			if err != nil {
				return nil, err // a typed nil would not be nil
			}
		}
		cc.tls.Store(t)
		return t, nil
	}, dialAtOnce)
	if err != nil {
		return nil, err
	}
	c.byName[key] = cc
	if key.dc != c.own && key.node == "" {
		c.kept.Go(func() { keep(cc) })
	}
	return cc, nil
}

// keep connects cc whenever it is not, until it is given up.
func keep(cc *conn) {
	for {
		state := cc.GetState()
		if state == connectivity.Idle {
			cc.Connect()
		}
		if !cc.WaitForStateChange(cc.life, state) {
			return
		}
	}
}

// Run follows the address book until ctx ends, and then closes all connections.
func (c *conns) Run(ctx context.Context) error {
	var wg sync.WaitGroup
	defer wg.Wait()
	ctx, cancel := context.WithCancel(ctx)
	defer cancel() // an early return ends keepMoving too
	wg.Go(func() { c.keepMoving(ctx) })
	old := &wanfed.Routes{}
	for {
		changed := c.book.Changed()
		now := c.book.Load()
		c.routesChanged(old, now)
		for _, cc := range c.all() {
			if dc := cc.key.dc; dc != c.own && len(now.Hops[dc]) == 0 && len(old.Hops[dc]) > 0 {
				c.giveUp(cc, 0) // it was deleted: nobody is to dial it for ever
			}
		}
		for dc := range now.Hops {
			if _, err := c.to(dc, ""); err != nil {
				return errors.Join(err, c.close())
			}
		}
		old = now
		select {
		case <-changed:
		case <-ctx.Done():
			return c.close()
		}
	}
}

// keepMoving looks for better ways until ctx ends.
func (c *conns) keepMoving(ctx context.Context) {
	tick := time.NewTicker(lookEvery)
	defer tick.Stop()
	for {
		changed, turned := c.book.Changed(), c.dialer.Turned()
		c.move(ctx)
		select {
		case <-changed:
		case <-turned:
		case <-tick.C:
		case <-ctx.Done():
			return
		}
	}
}

const (
	// lookEvery is how often a connection looks for a better way, besides at changes of the book, and when a hop works again.
	lookEvery = 30 * time.Second
	// lookFor bounds one such look.
	lookFor = 5 * time.Second
)

// move dials, for each connection to another datacenter, the ways that are better than the one it took, and puts a
// connection that comes about in its place. The old one is given up only then.
func (c *conns) move(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, lookFor)
	defer cancel()
	var wg sync.WaitGroup
	defer wg.Wait()
	for _, cc := range c.all() {
		t := cc.tls.Load()
		if cc.key.dc == c.own || t == nil || cc.GetState() != connectivity.Ready {
			continue
		}
		wg.Go(func() {
			next, err := c.dialer.DialBetter(ctx, t, wanfed.Target{DC: cc.key.dc, Node: cc.key.node}, wanfed.ProtoGRPC)
			if err == nil && next != nil {
				c.giveUpFor(cc, next, drainGrace)
			}
		})
	}
}

// giveUp makes the next call use a connection that is dialed anew. Calls under way on cc may finish within grace; streams on it end.
func (c *conns) giveUp(cc *conn, grace time.Duration) { c.giveUpFor(cc, nil, grace) }

// giveUpFor is giveUp, with the connection that the next call goes over, if not nil.
func (c *conns) giveUpFor(cc *conn, next *tls.Conn, grace time.Duration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.byName[cc.key] != cc || c.closed { // somebody was faster
		if next != nil {
			_ = next.NetConn().Close()
		}
		return
	}
	delete(c.byName, cc.key)
	if next != nil || cc.key.node == "" && len(c.book.Load().Hops[cc.key.dc]) > 0 {
		if moved, err := c.addLocked(cc.key, next); err == nil {
			moved.Connect() // takes next before it grows old
		}
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
		if t := cc.first.Swap(nil); t != nil {
			_ = t.NetConn().Close() // gRPC never asked for it
		}
	}
	c.kept.Wait()
	return errors.Join(errs...)
}
