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
// moment later than this server. A dial through a gateway that has not received
// the new paths yet hangs at a dead address.
const settleTime = 500 * time.Millisecond

var (
	errPathsChanged = errors.New("the paths to the datacenter have changed")
	errSettling     = errors.New("the local gateways may not have had the new paths yet")
)

// dial dials cc once. It dials a server of the local datacenter, or opens a
// stream of the session with another datacenter.
func (c *Client) dial(ctx context.Context, cc *conn) (net.Conn, error) {
	if cc.key.dc == c.cfg.DC {
		t, err := c.cfg.Dialer.Dial(ctx, wanfed.Target{DC: cc.key.dc, Node: cc.key.node}, wanfed.ProtoGRPC)
		if err != nil {
			return nil, err // not t: an interface with a nil pointer is not nil
		}
		return t, nil
	}
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

// redial dials the datacenter of cc by a call of dial. If the last dial of cc
// failed, redial pauses before the call. An event that can make the datacenter
// reachable ends the pause (see the package comment). If such an event arrives
// during a call of dial that then fails, redial calls dial again without a
// pause. When redial fails, gRPC calls it again.
//
// The backoff of gRPC is not used. ClientConn.ResetConnectBackoff, which would
// end its pause, races with the creation of connections (grpc-go 1.85).
func (c *Client) redial(ctx context.Context, cc *conn,
	dial func(context.Context, *conn) (net.Conn, error)) (net.Conn, error) {
	cc.dialing.Lock()
	defer cc.dialing.Unlock()
	var limit time.Duration
	if backoff.Sleep(ctx, backoff.Delay(cc.failures, minBackoff, cc.maxBackoff), cc.event) {
		cc.failures = 0 // next pause is short: a new path may need a moment to work
		limit = settleTime
	}
	if ctx.Err() != nil {
		return nil, context.Cause(ctx)
	}
	for {
		cc.event = c.events.Wait(cc.key.dc) // before the dial, to include events during the dial
		nc, err := c.dialOnce(ctx, cc, limit, dial)
		switch {
		case err == nil:
			cc.failures = 0
			return nc, nil
		case ctx.Err() == nil && errors.Is(err, errSettling):
			limit = 0
		case ctx.Err() == nil && errors.Is(err, errPathsChanged):
			limit = settleTime
		default:
			cc.failures++
			return nil, err
		}
	}
}

// dialOnce calls dial once. When the paths to the datacenter change, dialOnce
// cancels the call and returns errPathsChanged, because the paths that dial
// tries may be dead. It returns errSettling if the call takes longer than
// limit. A limit of 0 means no limit.
func (c *Client) dialOnce(
	ctx context.Context, cc *conn, limit time.Duration, dial func(context.Context, *conn) (net.Conn, error),
) (net.Conn, error) {
	ctx, cancel := context.WithCancelCause(ctx)
	var wg sync.WaitGroup
	defer wg.Wait()
	defer cancel(nil)
	dc := cc.key.dc
	paths := c.cfg.Book.Load().Paths[dc]
	wg.Go(func() {
		for {
			event := c.events.Wait(dc)
			if !slices.Equal(c.cfg.Book.Load().Paths[dc], paths) {
				cancel(errPathsChanged)
				return
			}
			select {
			case <-event:
			case <-ctx.Done():
				return
			}
		}
	})
	if limit > 0 {
		timer := time.AfterFunc(limit, func() { cancel(errSettling) })
		defer timer.Stop()
	}
	nc, err := dial(ctx, cc)
	if cause := context.Cause(ctx); err != nil && (errors.Is(cause, errPathsChanged) || errors.Is(cause, errSettling)) {
		return nil, cause
	}
	return nc, err
}
