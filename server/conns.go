// SPDX-License-Identifier: MPL-2.0

package server

import (
	"context"
	"errors"
	"net"
	"sync"

	"google.golang.org/grpc"
	"google.golang.org/grpc/connectivity"

	"github.com/wanfed/wanfed/api"
	"github.com/wanfed/wanfed/wanfed"
)

// conns holds one gRPC connection per server, or per "any server of a datacenter". They are keyed by datacenter and node,
// never by address. There are as many as datacenters and own servers.
type conns struct {
	dialer *wanfed.Dialer
	book   *wanfed.Book

	mu     sync.Mutex
	closed bool
	byName map[connKey]*grpc.ClientConn
}

type connKey struct{ dc, node string }

func newConns(d *wanfed.Dialer, b *wanfed.Book) *conns {
	return &conns{dialer: d, book: b, byName: map[connKey]*grpc.ClientConn{}}
}

var errStopping = errors.New("server is stopping")

// to returns the connection to a server; node "" is any server of dc. It does not dial: the first call does.
func (c *conns) to(dc, node string) (*grpc.ClientConn, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.closed {
		return nil, errStopping
	}
	key := connKey{dc, node}
	if cc := c.byName[key]; cc != nil {
		return cc, nil
	}
	cc, err := api.Connect(func(ctx context.Context) (net.Conn, error) {
		conn, err := c.dialer.Dial(ctx, wanfed.Target{DC: dc, Node: node}, wanfed.ProtoGRPC)
		if err != nil {
			return nil, err // a typed nil would not be nil
		}
		return conn, nil
	})
	if err != nil {
		return nil, err
	}
	c.byName[key] = cc
	return cc, nil
}

// Run gives up connections that have failed when the address book changes, so that the next call dials at once and does not
// wait for their back-off. (ClientConn.ResetConnectBackoff would do, but reads a map that others write.) At the end it
// closes all.
func (c *conns) Run(ctx context.Context) error {
	for {
		changed := c.book.Changed()
		for _, cc := range c.takeFailed() {
			_ = cc.Close() // calls that just began on it are told that it is closing, and are repeated by who made them
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return c.close()
		}
	}
}

func (c *conns) takeFailed() []*grpc.ClientConn {
	c.mu.Lock()
	defer c.mu.Unlock()
	var out []*grpc.ClientConn
	for key, cc := range c.byName {
		if cc.GetState() == connectivity.TransientFailure {
			delete(c.byName, key)
			out = append(out, cc)
		}
	}
	return out
}

func (c *conns) all() []*grpc.ClientConn {
	c.mu.Lock()
	defer c.mu.Unlock()
	out := make([]*grpc.ClientConn, 0, len(c.byName))
	for _, cc := range c.byName {
		out = append(out, cc)
	}
	return out
}

func (c *conns) close() error {
	c.mu.Lock()
	c.closed = true
	c.mu.Unlock()
	var errs []error
	for _, cc := range c.all() {
		errs = append(errs, cc.Close())
	}
	return errors.Join(errs...)
}
