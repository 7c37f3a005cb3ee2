// SPDX-License-Identifier: MPL-2.0

package wanfed

import (
	"context"
	"errors"
	"fmt"
	"net"
	"time"
)

// open opens a stream for h and waits for the answer, but not of a call over a session that has just been dialed. It returns when ctx ends, even if yamux does not, and with
// errSilentSession soon after the path has died: an answer that is late makes it test the session.
func (s *session) open(ctx context.Context, h streamHeader) (net.Conn, error) {
	type result struct {
		c   net.Conn
		err error
	}
	s.used.Store(time.Now().UnixNano())
	opening, cancel := context.WithCancel(ctx)
	defer cancel()
	got := make(chan result)
	if !s.t.life.start(func(context.Context) {
		c, err := s.handshake(opening, h)
		select {
		case got <- result{c, err}:
		case <-opening.Done():
			if c != nil {
				c.Close()
			}
		}
	}) {
		return nil, net.ErrClosed
	}
	late := time.NewTimer(s.patience())
	defer late.Stop()
	var silent <-chan struct{}
	for {
		select {
		case r := <-got:
			return r.c, r.err
		case <-late.C:
			silent = s.test(opening)
		case <-silent:
			return nil, errSilentSession
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}
}

func (s *session) handshake(ctx context.Context, h streamHeader) (net.Conn, error) {
	st, err := s.mux.OpenStream()
	if err != nil {
		return nil, fmt.Errorf("open stream: %w", err)
	}
	peer := h.target + "." + s.to.dc
	if h.target == "" {
		peer = s.to.String()
	}
	c := newStreamConn(st, peer)
	c.s = s
	if err := s.ask(ctx, c, h); err != nil {
		c.Close()
		return nil, err
	}
	return c, nil
}

// ask writes the header and reads the status.
func (s *session) ask(ctx context.Context, c *streamConn, h streamHeader) error {
	limit, ok := ctx.Deadline()
	if !ok {
		limit = time.Now().Add(s.t.tm.open)
	}
	c.SetDeadline(limit)
	stop := context.AfterFunc(ctx, func() { c.SetDeadline(time.Unix(1, 0)) })
	if _, err := c.Write(h.append(make([]byte, 0, maxStreamHead))); err != nil {
		return fmt.Errorf("write stream header: %w", err)
	}
	if h.pool == poolCalls && time.Since(s.since) < s.patience() {
		c.unanswered.Store(true) // the path has just worked: gRPC need not wait a round trip before it begins
	} else if err := c.readStatus(); err != nil {
		return fmt.Errorf("read stream status: %w", err)
	}
	if !stop() {
		return ctx.Err()
	}
	return c.SetDeadline(time.Time{})
}

// openStream opens a stream of pool to a member, over the session to its datacenter (or, in the own one, to it). source is
// who opens it. A session that turns out to be dead is replaced once; nothing of the caller's was sent by then.
func (t *Tunnel) openStream(ctx context.Context, pool Pool, to target, addr, source string) (net.Conn, error) {
	key := target{dc: to.dc}
	if to.dc == t.own.DC {
		key = to
	} else {
		addr = ""
	}
	if to.node == "" {
		addr = to.addr // the caller's may be made up
	}
	h := streamHeader{pool: pool, target: to.node, source: source}
	retried := false
	for range 3 {
		if key.dc != t.own.DC && pool != poolCalls && t.speaksConsul(key.dc) {
			if c, err := t.openConsulStream(ctx, to); c != nil || err != nil {
				return c, err
			}
		}
		s, err := t.sessionTo(ctx, key, addr)
		if err != nil {
			return nil, err
		}
		if s.consul {
			t.setConsul(key.dc, true)
			if pool == poolCalls {
				return nil, fmt.Errorf("servers of datacenter %s speak Consul's protocols: they take no calls", key.dc)
			}
			continue
		}
		c, err := s.open(ctx, h)
		var refused *refusedError
		if err == nil || retried || ctx.Err() != nil || errors.As(err, &refused) || !s.dead(err) {
			return c, err
		}
		retried = true
		t.forgetSession(s)
	}
	return nil, fmt.Errorf("servers of datacenter %s do not agree on a protocol; do all run the same software?", key.dc)
}
