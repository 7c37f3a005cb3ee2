// SPDX-License-Identifier: MPL-2.0

package dcrpc

import (
	"context"
	"errors"
	"net"
	"slices"
	"sync"
	"time"

	"github.com/wanfed/wanfed/internal/backoff"
	"github.com/wanfed/wanfed/wanfed"
)

// settleTime is the time after which a dial is restarted if it began right
// after an event of its datacenter. The local gateways receive new paths a
// moment later than this server. A dial through them that starts too early
// hangs at a dead address.
const settleTime = 500 * time.Millisecond

var (
	errPathsChanged = errors.New("the paths to the datacenter have changed")
	errSettling     = errors.New("the local gateways may not have had the new paths yet")
)

// dialerOf returns the function with which gRPC dials cc. gRPC calls the
// function repeatedly while it fails.
func (c *Client) dialerOf(cc *conn) func(context.Context) (net.Conn, error) {
	dial := c.dialSession
	if cc.key.dc == c.cfg.DC {
		dial = c.dialServer
	}
	return func(ctx context.Context) (net.Conn, error) {
		return c.redial(ctx, cc, func(ctx context.Context) (net.Conn, error) { return dial(ctx, cc) })
	}
}

func (c *Client) dialServer(ctx context.Context, cc *conn) (net.Conn, error) {
	t, err := c.cfg.Dialer.Dial(ctx, wanfed.Target{DC: cc.key.dc, Node: cc.key.node}, wanfed.ProtoGRPC)
	if err != nil {
		return nil, err // a typed nil would not be nil
	}
	return t, nil
}

func (c *Client) dialSession(ctx context.Context, cc *conn) (net.Conn, error) {
	s, err := c.cfg.Tunnel.DialGRPC(ctx, cc.key.dc)
	if err != nil {
		return nil, err
	}
	cc.stream.Store(s)
	if !c.spawn(func() { c.followSession(cc, s) }) {
		return nil, errors.Join(errStopping, s.Close())
	}
	return s, nil
}

// redial calls dial. If the last dial of cc failed, redial pauses first. An
// event of the datacenter ends the pause. If such an event arrives during a
// failed call of dial, redial calls dial again.
//
// The backoff of gRPC is not used. ClientConn.ResetConnectBackoff, which would
// end its pause, races with the creation of connections (grpc-go 1.85).
func (c *Client) redial(ctx context.Context, cc *conn, dial func(context.Context) (net.Conn, error)) (net.Conn, error) {
	dc := cc.key.dc
	cc.dialing.Lock()
	defer cc.dialing.Unlock()
	var limit time.Duration
	if backoff.Sleep(ctx, backoff.Delay(cc.failures, minBackoff, cc.maxBackoff), cc.news) {
		cc.failures = 0 // what is new may need a moment to work
		limit = settleTime
	}
	if ctx.Err() != nil {
		return nil, context.Cause(ctx)
	}
	for {
		cc.news = c.news.Wait(dc) // before the dial: news during the dial count
		nc, err := c.dialOnce(ctx, dc, limit, dial)
		if err == nil {
			cc.failures = 0
			return nc, nil
		}
		limit = settleTime
		switch {
		case ctx.Err() != nil:
		case errors.Is(err, errSettling):
			limit = 0
			continue
		case errors.Is(err, errPathsChanged):
			continue
		}
		cc.failures++
		return nil, err
	}
}

// dialOnce calls dial once. When the paths to dc change, dialOnce cancels the
// call and returns errPathsChanged, because the paths that dial tries may be
// dead. It returns errSettling if the call takes longer than limit. A limit of
// 0 means no limit.
func (c *Client) dialOnce(ctx context.Context, dc string, limit time.Duration, dial func(context.Context) (net.Conn, error)) (net.Conn, error) {
	ctx, cancel := context.WithCancelCause(ctx)
	var wg sync.WaitGroup
	defer wg.Wait()
	defer cancel(nil)
	paths := c.cfg.Book.Load().Paths[dc]
	wg.Go(func() {
		for {
			news := c.news.Wait(dc)
			if !slices.Equal(c.cfg.Book.Load().Paths[dc], paths) {
				cancel(errPathsChanged)
				return
			}
			select {
			case <-news:
			case <-ctx.Done():
				return
			}
		}
	})
	if limit > 0 {
		timer := time.AfterFunc(limit, func() { cancel(errSettling) })
		defer timer.Stop()
	}
	nc, err := dial(ctx)
	if cause := context.Cause(ctx); err != nil && (errors.Is(cause, errPathsChanged) || errors.Is(cause, errSettling)) {
		return nil, cause
	}
	return nc, err
}
