// SPDX-License-Identifier: MPL-2.0

package wanfed

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"sync"
	"sync/atomic"
	"time"

	"github.com/hashicorp/yamux"
)

// session is one outgoing yamux session: to any server of another datacenter, or to one server of the own. Its goroutine,
// run, dials it, closes it when nobody uses it, and takes it out of the tunnel before it closes it. Many callers wait for
// the dial of one.
type session struct {
	t      *Tunnel
	to     target
	addr   string        // to dial; only for the own datacenter
	readyc chan struct{} // closed when the fields below are set

	mux    *yamux.Session // nil: err, or consul, is set
	conn   *tls.Conn
	consul bool // the servers there speak Consul's protocols
	err    error
	since  time.Time

	used atomic.Int64 // unix nanoseconds; last opening of a stream
}

// sessionTo returns the session to key, dialing it if there is none; not before it is ready.
func (t *Tunnel) sessionTo(ctx context.Context, key target, addr string) (*session, error) {
	s, err := t.findSession(key, addr)
	if err != nil {
		return nil, err
	}
	select {
	case <-s.readyc:
		return s, s.err
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

func (t *Tunnel) findSession(key target, addr string) (*session, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if s := t.sessions[key]; s != nil {
		return s, nil
	}
	if len(t.sessions) >= maxLinks {
		return nil, fmt.Errorf("%d stream sessions are open already", maxLinks)
	}
	s := &session{t: t, to: key, addr: addr, readyc: make(chan struct{})}
	if !t.life.start(s.run) {
		return nil, net.ErrClosed
	}
	t.sessions[key] = s
	return s, nil
}

// forgetSession makes the next caller dial anew.
func (t *Tunnel) forgetSession(s *session) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.sessions[s.to] == s {
		delete(t.sessions, s.to)
	}
}

func (s *session) run(ctx context.Context) {
	err := s.dial(ctx)
	if err != nil || s.consul {
		s.t.forgetSession(s) // first, so that who sees the error can try again
		s.err = err
		close(s.readyc)
		return
	}
	close(s.readyc)
	s.live(ctx)
}

// live keeps a ready session until it is dead, idle, replaced by one over a better way, or ctx ended.
func (s *session) live(ctx context.Context) {
	s.used.Store(time.Now().UnixNano())
	lookCtx, cancel := context.WithCancel(ctx)
	var wg sync.WaitGroup
	found := make(chan *tls.Conn, 1)
	s.watch(ctx, found, func() bool {
		return s.t.lookForBetter(lookCtx, &wg, s.conn, Target{DC: s.to.dc, Node: s.to.node}, ProtoStream, found)
	})
	s.t.forgetSession(s)
	_ = s.mux.Close()
	cancel()
	wg.Wait()
	dropFound(found)
}

func (s *session) dial(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, s.t.tm.dial)
	defer cancel()
	alpn := []string{ProtoStream}
	if s.to.dc != s.t.own.DC {
		alpn = append(alpn, ProtoConsulStream)
	}
	c, err := s.t.cfg.Dialer.Dial(ctx, Target{DC: s.to.dc, Node: s.to.node, Addr: s.addr}, alpn...)
	if err != nil {
		return err
	}
	if c.ConnectionState().NegotiatedProtocol == ProtoConsulStream {
		s.consul = true
		closeConn(c) // to any server there; the caller wants a certain one
		return nil
	}
	return s.adopt(c)
}

// adopt makes c the session's connection.
func (s *session) adopt(c *tls.Conn) (err error) {
	s.conn, s.since = c, time.Now()
	s.mux, err = yamux.Client(muxConn{c, s.t.tm.muxWrite}, s.t.tm.muxConfig(s.t.log.With("dc", s.to.dc, "node", s.to.node)))
	if err != nil {
		closeConn(c)
	}
	return err
}

// succeed puts a session over c in the place of s, which takes no new streams then.
func (s *session) succeed(c *tls.Conn) {
	n := &session{t: s.t, to: s.to, addr: s.addr, readyc: make(chan struct{})}
	if n.adopt(c) != nil {
		return
	}
	close(n.readyc)
	s.t.mu.Lock()
	ok := s.t.sessions[s.to] == s && s.t.life.start(n.live)
	if ok {
		s.t.sessions[s.to] = n
	}
	s.t.mu.Unlock()
	if !ok {
		_ = n.mux.Close()
	}
}

// watch returns when the session is dead, idle or to end. look looks for a better way; the result comes on found.
func (s *session) watch(ctx context.Context, found <-chan *tls.Conn, look func() bool) {
	tick, better := time.NewTicker(s.t.tm.session/4), time.NewTicker(s.t.tm.better)
	defer tick.Stop()
	defer better.Stop()
	changed := s.t.book.Changed()
	looking, replaced := look(), false
	for {
		select {
		case <-changed:
			changed = s.t.book.Changed()
			looking = looking || look()
		case <-better.C:
			looking = looking || look()
		case c := <-found:
			if looking = false; c != nil {
				s.succeed(c)
				looking, replaced = true, true // no more looking
			}
		case <-ctx.Done():
			return
		case <-s.mux.CloseChan():
			_, err := s.mux.AcceptStream() // nobody opens streams this way; this gives why the session ended
			s.t.log.Debug("stream session ended", "dc", s.to.dc, "node", s.to.node, "remote", s.conn.RemoteAddr(), "err", err)
			if errors.Is(err, yamux.ErrKeepAliveTimeout) || isTimeout(err) {
				s.t.cfg.Dialer.Broke(s.conn, err)
			}
			return
		case <-tick.C:
			idle := time.Since(time.Unix(0, s.used.Load()))
			if s.mux.NumStreams() == 0 && (replaced || idle >= s.t.tm.session) {
				return
			}
		}
	}
}

// dead says whether no stream can be opened any more.
func (s *session) dead(err error) bool {
	return s.mux.IsClosed() || errors.Is(err, yamux.ErrRemoteGoAway) || errors.Is(err, yamux.ErrStreamsExhausted)
}

// open opens a stream for h and waits for the answer. It returns when ctx ends, even if yamux does not.
func (s *session) open(ctx context.Context, h streamHeader) (net.Conn, error) {
	type result struct {
		c   net.Conn
		err error
	}
	s.used.Store(time.Now().UnixNano())
	got := make(chan result)
	if !s.t.life.start(func(context.Context) {
		c, err := s.handshake(ctx, h)
		select {
		case got <- result{c, err}:
		case <-ctx.Done():
			if c != nil {
				c.Close()
			}
		}
	}) {
		return nil, net.ErrClosed
	}
	select {
	case r := <-got:
		return r.c, r.err
	case <-ctx.Done():
		return nil, ctx.Err()
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
	var status [1]byte
	if _, err := io.ReadFull(c, status[:]); err != nil {
		return fmt.Errorf("read stream status: %w", err)
	}
	if streamStatus(status[0]) != streamOK {
		return &refusedError{streamStatus(status[0]), string(c.peer)}
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
		if key.dc != t.own.DC && t.speaksConsul(key.dc) {
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

func (s *session) snapshot() SessionStatus {
	st := SessionStatus{DC: s.to.dc, Node: s.to.node}
	select {
	case <-s.readyc:
		if s.mux != nil {
			st.ConnectedSince, st.Streams, st.Hop = s.since, s.mux.NumStreams(), pathOf(s.conn).hop
		}
	default:
	}
	return st
}
