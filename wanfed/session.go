// SPDX-License-Identifier: MPL-2.0

package wanfed

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/hashicorp/yamux"

	"github.com/wanfed/wanfed/internal/broadcast"
	"github.com/wanfed/wanfed/tlsutil"
)

// session is an outgoing yamux session to any server of another datacenter, or
// to one server of the local datacenter. Streams to the target share the
// session. Its goroutine, run, dials the session, closes an idle session, and
// removes a closed session from the tunnel.
type session struct {
	t         *Tunnel
	to        target
	addr      string        // according to memberlist; only for the local datacenter
	readyC    chan struct{} // closed when mux, conn, consul, err and since are set
	replacedC chan struct{} // closed when the session accepts no more new streams
	redialC   chan struct{} // size 1: restarts the dial, or ends the dial if no caller waits

	waiters int // callers that wait for readyC; guarded by Tunnel.mu
	standbyState

	mux    *yamux.Session // nil if err or consul is set
	conn   *tls.Conn
	consul bool // the server speaks Consul's protocols, which have no sessions
	err    error
	since  time.Time // end of the dial

	lastUsed atomic.Int64 // time of the last opened stream, in Unix nanoseconds

	keepalive *time.Timer // fires when a ping is due
	unpinged  atomic.Bool // keepalive is stopped: the session had no streams
}

// errSessionSilent reports that the liveness probe of a session failed.
var errSessionSilent = errors.New("the session's peer, or a gateway on the path, stopped responding")

// sessionTo returns a ready session to key. If the tunnel has no session to
// key, sessionTo dials one.
func (t *Tunnel) sessionTo(ctx context.Context, key target, addr string) (*session, error) {
	s, err := t.findSession(key, addr)
	if err != nil {
		return nil, err
	}
	select {
	case <-s.readyC:
		return s, s.err
	case <-ctx.Done():
		cause := context.Cause(ctx)
		s.stopWaiting(!errors.Is(cause, context.Canceled) && !errors.Is(cause, context.DeadlineExceeded))
		return nil, ctx.Err()
	}
}

// stopWaiting unregisters a caller that waited for the dial of s. The dial ends
// when no caller waits. If restart is true, the caller has reported that the
// paths have changed. The dial then starts again for the other callers. A
// timeout of one caller does not restart the dial, which may be about to
// succeed.
func (s *session) stopWaiting(restart bool) {
	s.t.mu.Lock()
	s.waiters--
	last := s.waiters == 0
	if last && s.t.sessions[s.to] == s && !s.isReady() {
		s.removeLocked()
	}
	s.t.mu.Unlock()
	if !last && !restart {
		return
	}
	select {
	case s.redialC <- struct{}{}:
	default:
	}
}

// removeLocked removes s from the tunnel. The standby of s, if any, replaces s.
func (s *session) removeLocked() {
	delete(s.t.sessions, s.to)
	if s.standby != nil {
		s.t.sessions[s.to] = s.standby
		s.standby.active, s.standby = nil, nil
	}
	close(s.replacedC)
}

func (s *session) isReady() bool { return broadcast.IsClosed(s.readyC) }

func (s *session) hasWaiters() bool {
	s.t.mu.RLock()
	defer s.t.mu.RUnlock()
	return s.waiters > 0
}

// findSession returns the session to key, and registers the caller as a waiter.
// It starts a new session if the tunnel has none.
func (t *Tunnel) findSession(key target, addr string) (*session, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if s := t.sessions[key]; s != nil {
		s.waiters++
		return s, nil
	}
	if len(t.sessions) >= maxLinks {
		return nil, fmt.Errorf("%d stream sessions are open already", maxLinks)
	}
	s := newSession(t, key, addr)
	s.waiters = 1
	if !t.group.spawn(s.run) {
		return nil, net.ErrClosed
	}
	t.sessions[key] = s
	return s, nil
}

func newSession(t *Tunnel, to target, addr string) *session {
	return &session{
		t: t, to: to, addr: addr, readyC: make(chan struct{}), replacedC: make(chan struct{}),
		redialC: make(chan struct{}, 1), keepalive: time.NewTimer(t.limits.keepaliveInterval),
	}
}

// removeSession removes s from the tunnel. The next stream uses the standby of
// s or a new session. If s is a standby, removeSession unlinks s from its
// active session.
func (t *Tunnel) removeSession(s *session) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.sessions[s.to] == s {
		s.removeLocked()
	}
	if s.active != nil {
		s.active.standbyGoneLocked(time.Now())
	}
}

// Disconnect closes the sessions to datacenter dc, and the connections from dc that a
// link may borrow. Later streams and packets use new connections. Disconnect is for a
// datacenter that was replaced by another datacenter with the same name.
func (t *Tunnel) Disconnect(dc string) {
	var removed []*session
	t.mu.Lock()
	for key, s := range t.sessions {
		if key.dc == dc && s.isReady() {
			s.dropStandbyLocked(time.Now())
			s.removeLocked()
			removed = append(removed, s)
		}
	}
	accepted := slices.Clone(t.accepted[dc])
	t.mu.Unlock()
	for _, s := range removed {
		_ = s.mux.Close()
	}
	for _, pc := range accepted {
		pc.c.(*tls.Conn).NetConn().Close() // at once: its peer may not read
	}
}

func (s *session) run(ctx context.Context) {
	if s.err = s.dial(ctx); s.err == nil && !s.consul {
		close(s.readyC)
		s.maintain(ctx)
		return
	}
	s.t.removeSession(s) // before readyC: a caller that receives the error may retry at once
	close(s.readyC)
}

// maintain serves a ready session until the session is broken, idle or
// replaced, or ctx ends. It then closes the session.
func (s *session) maintain(ctx context.Context) {
	s.lastUsed.Store(time.Now().UnixNano())
	dialCtx, cancel := context.WithCancel(ctx)
	var wg sync.WaitGroup
	dialedC := make(chan *tls.Conn, 1)
	s.watch(ctx, dialedC, func() bool {
		to := Target{DC: s.to.dc, Node: s.to.node}
		return s.t.dialBetter(dialCtx, &wg, s.conn, to, ProtoStream, dialedC)
	})
	s.t.removeSession(s)
	_ = s.mux.Close()
	cancel()
	wg.Wait()
	closePending(dialedC)
}

func (s *session) dial(ctx context.Context) error {
	c, err := s.dialRestartable(ctx)
	if err != nil {
		return err
	}
	if c.ConnectionState().NegotiatedProtocol == ProtoConsulStream {
		s.consul = true
		closeConn(c) // the peer may be any server; openConsulStream dials the server by name
		return nil
	}
	return s.setConn(c)
}

// dialRestartable dials the target. A receive from redialC starts the dial
// again, or ends the dial if no caller waits.
func (s *session) dialRestartable(ctx context.Context) (*tls.Conn, error) {
	for first := true; ; first = false {
		dialCtx, cancel := context.WithCancel(ctx)
		var wg sync.WaitGroup
		restart := false
		wg.Go(func() {
			select {
			case <-s.redialC:
				restart = true
			case <-dialCtx.Done():
			}
			cancel()
		})
		c, err := s.dialOnce(dialCtx, first)
		cancel()
		wg.Wait()
		if err == nil || !restart || ctx.Err() != nil || !s.hasWaiters() {
			return c, err
		}
	}
}

// setConn makes c the connection of the session.
func (s *session) setConn(c *tls.Conn) (err error) {
	s.conn, s.since = c, time.Now()
	cfg := s.t.limits.yamuxConfig(s.t.log.With("peer", s.to.String()))
	s.mux, err = yamux.Client(&yamuxConn{Conn: c, timeout: s.t.limits.keepaliveTimeout}, cfg)
	if err != nil {
		closeConn(c)
	}
	return err
}

// watch returns when the session is broken, when the session is idle or
// replaced and has no streams, or when ctx ends. migrate starts to dial the
// better paths, and returns false if there are none. The result of the dial
// arrives on dialedC. While the session has streams, watch sends pings. A dead
// path of a session without streams is detected when the next stream is opened.
func (s *session) watch(ctx context.Context, dialedC <-chan *tls.Conn, migrate func() bool) {
	period := s.t.limits.sessionIdleTimeout / 4
	tick, better := time.NewTicker(period), time.NewTicker(s.t.limits.migrateInterval)
	defer tick.Stop()
	defer better.Stop()
	defer s.keepalive.Stop()
	s.keepalive.Reset(s.t.limits.keepaliveInterval) // the dial took time
	pong := make(chan error, 1)                     // the result of a ping
	pinging := false
	paths := s.t.cfg.Dialer.paths
	changed, recovered := s.t.book.Changed(), paths.recovered.Wait(s.to.dc)
	dialing := migrate()
	unused := 0 // ticks in a row without streams
	for {
		select {
		case <-changed:
			changed = s.t.book.Changed()
			dialing = dialing || migrate()
		case <-recovered:
			recovered = paths.recovered.Wait(s.to.dc)
			dialing = dialing || migrate()
		case <-better.C:
			dialing = dialing || migrate()
		case c := <-dialedC:
			if dialing = c != nil; dialing { // s is replaced and needs no further dial
				s.replaceWith(c)
			}
		case <-s.keepalive.C:
			if s.mux.NumStreams() == 0 {
				s.unpinged.Store(true)
				if s.mux.NumStreams() > 0 {
					s.keepPinging()
				}
				continue
			}
			s.keepalive.Reset(s.t.limits.keepaliveInterval)
			if !pinging {
				pinging = s.t.group.spawn(func(context.Context) {
					_, err := s.mux.Ping() // fails after keepaliveTimeout, or at the end of the session
					pong <- err
				})
			}
		case err := <-pong:
			if pinging = false; err != nil && !s.mux.IsClosed() {
				s.t.log.Debug("stream session is silent", "peer", s.to.String(), "remote", s.conn.RemoteAddr())
				s.t.cfg.Dialer.ReportFailure(s.conn, errSessionSilent)
				return
			}
		case <-ctx.Done():
			return
		case <-s.mux.CloseChan():
			_, err := s.mux.AcceptStream() // returns the error that ended the session: the peer opens no streams
			s.t.log.Debug("stream session ended", "peer", s.to.String(), "remote", s.conn.RemoteAddr(), "err", err)
			_, isAlert := tlsutil.AlertOf(err) // see link.use
			if isAlert || isTimeout(err) {
				s.t.cfg.Dialer.ReportFailure(s.conn, err)
			}
			return
		case <-tick.C:
			if unused++; s.mux.NumStreams() > 0 {
				unused = 0
			}
			// At the first tick without streams, either end may not have read
			// the end of the last stream yet.
			idle := time.Since(time.Unix(0, s.lastUsed.Load()))
			if unused > 1 && (broadcast.IsClosed(s.replacedC) || idle >= s.t.limits.sessionIdleTimeout) {
				return
			}
			tick.Reset(period) // otherwise the next tick would follow a late tick at once
		}
	}
}

// keepPinging is called when s has a new stream.
func (s *session) keepPinging() {
	if s.unpinged.CompareAndSwap(true, false) {
		s.keepalive.Reset(s.t.limits.keepaliveInterval)
	}
}

// isBroken reports whether err means that no more streams can be opened.
func (s *session) isBroken(err error) bool {
	return s.mux.IsClosed() || errors.Is(err, errSessionSilent) ||
		errors.Is(err, yamux.ErrRemoteGoAway) || errors.Is(err, yamux.ErrStreamsExhausted)
}

func (s *session) status() SessionStatus {
	st := SessionStatus{DC: s.to.dc, Node: s.to.node}
	if s.isReady() && s.mux != nil {
		st.ConnectedSince, st.Streams, st.Path = s.since, s.mux.NumStreams(), pathConnOf(s.conn).path
	}
	return st
}

// replaceWith replaces s with a session over c. New streams use the new
// session.
func (s *session) replaceWith(c *tls.Conn) {
	n := newSession(s.t, s.to, s.addr)
	if n.setConn(c) != nil {
		return
	}
	close(n.readyC)
	s.t.mu.Lock()
	ok := s.t.sessions[s.to] == s && s.t.group.spawn(n.maintain)
	if ok {
		s.dropStandbyLocked(time.Now())
		s.removeLocked()
		s.t.sessions[s.to] = n
	}
	s.t.mu.Unlock()
	if !ok {
		_ = n.mux.Close()
	}
}

// openStream opens a stream of pool to a member. It uses the session to the
// datacenter of the member or, in the local datacenter, the session to the
// member itself. The argument source is the member that opens the stream. If
// the session is broken, openStream retries once over a new session. The caller
// has not sent any data then.
func (t *Tunnel) openStream(ctx context.Context, pool Pool, to target, addr, source string) (net.Conn, error) {
	key := target{dc: to.dc}
	if to.dc == t.self.DC {
		key = to
	} else {
		addr = ""
	}
	if to.node == "" {
		addr = to.addr // memberlist may have invented the argument addr
	}
	h := streamHeader{pool: pool, target: to.node, source: source}
	retried := false
	for range 3 {
		if key.dc != t.self.DC && pool != poolGRPC && t.speaksConsul(key.dc) {
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
			if pool == poolGRPC {
				return nil, fmt.Errorf("servers of datacenter %s speak Consul's protocols, which carry no gRPC", key.dc)
			}
			continue
		}
		c, err := s.open(ctx, h)
		var refused *refusedError
		if err == nil || retried || ctx.Err() != nil || errors.As(err, &refused) || !s.isBroken(err) {
			return c, err
		}
		retried = true
		t.removeSession(s)
	}
	return nil, fmt.Errorf("servers of datacenter %s chose different protocols; check that all run the same software",
		key.dc)
}

// open opens a stream, sends h and waits for the status. It returns when ctx
// ends, even if yamux still blocks. A late status starts a liveness probe of
// the session. If the probe fails, open returns errSessionSilent.
func (s *session) open(ctx context.Context, h streamHeader) (net.Conn, error) {
	type result struct {
		c   net.Conn
		err error
	}
	s.lastUsed.Store(time.Now().UnixNano())
	opening, cancel := context.WithCancel(ctx)
	defer cancel()
	opened := make(chan result)
	if !s.t.group.spawn(func(context.Context) {
		c, err := s.handshake(opening, h)
		select {
		case opened <- result{c, err}:
		case <-opening.Done():
			if c != nil {
				c.Close()
			}
		}
	}) {
		return nil, net.ErrClosed
	}
	late := time.NewTimer(s.probeTimeout())
	defer late.Stop()
	var silent <-chan struct{}
	for {
		select {
		case r := <-opened:
			return r.c, r.err
		case <-late.C:
			silent = s.probe(opening)
		case <-silent:
			return nil, errSessionSilent
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}
}

// handshake opens a stream, sends h and waits for the status.
func (s *session) handshake(ctx context.Context, h streamHeader) (net.Conn, error) {
	st, err := s.mux.OpenStream()
	if err != nil {
		return nil, fmt.Errorf("open stream: %w", err)
	}
	s.keepPinging()
	peer := h.target + "." + s.to.dc
	if h.target == "" {
		peer = s.to.String()
	}
	c := newStreamConn(st, peer)
	c.session = s
	if err := s.sendHeader(ctx, c, h); err != nil {
		c.Close()
		return nil, err
	}
	return c, nil
}

// sendHeader writes h and reads the status. On a session that has just been
// dialed, the path works. sendHeader then leaves the status of a gRPC stream to
// the first Read, and HTTP/2 starts a round trip earlier.
func (s *session) sendHeader(ctx context.Context, c *streamConn, h streamHeader) error {
	limit, ok := ctx.Deadline()
	if !ok {
		limit = time.Now().Add(s.t.limits.openTimeout)
	}
	c.SetDeadline(limit)
	stop := context.AfterFunc(ctx, func() { c.SetDeadline(time.Unix(1, 0)) })
	if _, err := c.Write(h.append(make([]byte, 0, maxStreamHead))); err != nil {
		return fmt.Errorf("write stream header: %w", err)
	}
	if h.pool == poolGRPC && time.Since(s.since) < s.probeTimeout() {
		c.statusPending = true
	} else if err := c.readStatus(); err != nil {
		return fmt.Errorf("read stream status: %w", err)
	}
	if !stop() {
		return ctx.Err()
	}
	return c.SetDeadline(time.Time{})
}
