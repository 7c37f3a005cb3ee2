// SPDX-License-Identifier: MPL-2.0

package dcrpc

import (
	"context"
	"errors"
	"net"
	"slices"
	"sync"
	"time"

	"github.com/wanfed/wanfed/internal/broadcast"
	"github.com/wanfed/wanfed/wanfed"
)

// settleTime is when a dial is restarted that began right after news of its
// datacenter. The local gateways learn of new paths a moment later than this
// server does, and a dial through them that is too early hangs at an address that
// is dead.
const settleTime = 500 * time.Millisecond

var (
	errPathsChanged = errors.New("the paths to the datacenter have changed")
	errSettling     = errors.New("the local gateways may not have had the new paths yet")
)

// dialerOf returns the function with which gRPC dials cc. gRPC repeats a failed
// dial with backoff; the function itself repeats a dial that news have overtaken.
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

// redial calls dial, and again when news of the datacenter came during a call that
// failed.
func (c *Client) redial(ctx context.Context, cc *conn, dial func(context.Context) (net.Conn, error)) (net.Conn, error) {
	dc := cc.key.dc
	var limit time.Duration
	if cc.dialFailed.Load() && c.news.recent(dc) {
		limit = settleTime // news have ended the backoff
	}
	for {
		news := c.news.Wait(dc)
		nc, err := c.dialOnce(ctx, dc, limit, dial)
		cc.dialFailed.Store(err != nil)
		if err == nil || ctx.Err() != nil {
			return nc, err
		}
		limit = settleTime
		if errors.Is(err, errSettling) {
			limit = 0
			continue
		}
		select {
		case <-news: // which includes changed paths
		default:
			return nil, err
		}
	}
}

// dialOnce calls dial once. It cancels the call, and returns errPathsChanged, when
// the paths to dc change: those that the dial tries may be dead. It returns
// errSettling when the call takes longer than limit; 0 is no limit.
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

// news is a keyed broadcast of events that make a dial worth repeating: a
// datacenter has other paths, or one of its servers has connected to this one.
type news struct {
	broadcast.Keyed[string]

	mu   sync.Mutex
	last map[string]time.Time
}

func newNews() *news { return &news{last: map[string]time.Time{}} }

func (n *news) notify(dc string) {
	n.mu.Lock()
	n.last[dc] = time.Now()
	n.mu.Unlock()
	n.Notify(dc)
}

// recent reports whether there was news of dc within settleTime.
func (n *news) recent(dc string) bool {
	n.mu.Lock()
	defer n.mu.Unlock()
	return time.Since(n.last[dc]) < settleTime
}
