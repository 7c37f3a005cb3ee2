// SPDX-License-Identifier: MPL-2.0

package wanfed

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
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
	readyc chan struct{} // closed when mux, conn, consul, err and since are set
	gonec  chan struct{} // closed when another one, or none, takes new streams
	again  chan struct{} // size 1: begin the dial anew, or end it when nobody waits any more

	waiting int // for readyc; guarded by t.mu
	spares

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
		cause := context.Cause(ctx)
		s.tired(!errors.Is(cause, context.Canceled) && !errors.Is(cause, context.DeadlineExceeded))
		return nil, ctx.Err()
	}
}

// tired is called by who does not wait any longer for a dial. It ends when nobody else waits. With anew, because there is news of
// the ways, whoever else waits gets a new one. That somebody ran out of time is no such reason: the dial may be about to be done.
func (s *session) tired(anew bool) {
	s.t.mu.Lock()
	s.waiting--
	last := s.waiting == 0
	if last && s.t.sessions[s.to] == s && !s.isReady() {
		s.removeLocked()
	}
	s.t.mu.Unlock()
	if !last && !anew {
		return
	}
	select {
	case s.again <- struct{}{}:
	default:
	}
}

// removeLocked takes s out of the tunnel. Its spare comes in its place.
func (s *session) removeLocked() {
	delete(s.t.sessions, s.to)
	s.takeOverLocked()
	close(s.gonec)
}

func (s *session) isReady() bool {
	select {
	case <-s.readyc:
		return true
	default:
		return false
	}
}

func (s *session) isGone() bool {
	select {
	case <-s.gonec:
		return true
	default:
		return false
	}
}

func (s *session) wanted() bool {
	s.t.mu.RLock()
	defer s.t.mu.RUnlock()
	return s.waiting > 0
}

func (t *Tunnel) findSession(key target, addr string) (*session, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if s := t.sessions[key]; s != nil {
		s.waiting++
		return s, nil
	}
	if len(t.sessions) >= maxLinks {
		return nil, fmt.Errorf("%d stream sessions are open already", maxLinks)
	}
	s := newSession(t, key, addr)
	s.waiting = 1
	if !t.life.start(s.run) {
		return nil, net.ErrClosed
	}
	t.sessions[key] = s
	return s, nil
}

func newSession(t *Tunnel, to target, addr string) *session {
	return &session{
		t: t, to: to, addr: addr, readyc: make(chan struct{}), gonec: make(chan struct{}), again: make(chan struct{}, 1),
	}
}

// forgetSession makes the next caller dial anew; false means that somebody else already did.
func (t *Tunnel) forgetSession(s *session) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.sessions[s.to] != s {
		return false
	}
	s.removeLocked()
	return true
}

func (s *session) run(ctx context.Context) {
	err := s.dial(ctx)
	if err != nil || s.consul {
		s.failed()
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
	c, err := s.dialAgain(ctx)
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

// dialAgain dials, and begins anew when it is told to.
func (s *session) dialAgain(ctx context.Context) (*tls.Conn, error) {
	for first := true; ; first = false {
		dctx, cancel := context.WithCancel(ctx)
		var wg sync.WaitGroup
		told := false
		wg.Go(func() {
			select {
			case <-s.again:
				told = true
			case <-s.dropped:
			case <-dctx.Done():
			}
			cancel()
		})
		c, err := s.dialOnce(dctx, first)
		cancel()
		wg.Wait()
		if err == nil || !told || ctx.Err() != nil || !s.wanted() {
			return c, err
		}
	}
}

// adopt makes c the session's connection.
func (s *session) adopt(c *tls.Conn) (err error) {
	s.conn, s.since = c, time.Now()
	s.mux, err = yamux.Client(&muxConn{Conn: c, limit: s.t.tm.muxWrite}, s.t.tm.muxConfig(s.t.log.With("peer", s.to.String())))
	if err != nil {
		closeConn(c)
	}
	return err
}

// succeed puts a session over c in the place of s, which takes no new streams then.
func (s *session) succeed(c *tls.Conn) {
	n := newSession(s.t, s.to, s.addr)
	if n.adopt(c) != nil {
		return
	}
	close(n.readyc)
	s.t.mu.Lock()
	ok := s.t.sessions[s.to] == s && s.t.life.start(n.live)
	if ok {
		s.dropSpareLocked(time.Now())
		s.removeLocked()
		s.t.sessions[s.to] = n
	}
	s.t.mu.Unlock()
	if !ok {
		_ = n.mux.Close()
	}
}

// watch returns when the session is dead, idle or to end. look looks for a better path; the result comes on found.
func (s *session) watch(ctx context.Context, found <-chan *tls.Conn, look func() bool) {
	tick, better := time.NewTicker(s.t.tm.session/4), time.NewTicker(s.t.tm.better)
	defer tick.Stop()
	defer better.Stop()
	changed, turned := s.t.book.Changed(), s.t.cfg.Dialer.paths.turnedAt(s.to.dc)
	looking := look()
	empty := 0 // ticks in a row without streams
	for {
		select {
		case <-changed:
			changed = s.t.book.Changed()
			looking = looking || look()
		case <-turned:
			turned = s.t.cfg.Dialer.paths.turnedAt(s.to.dc)
			looking = looking || look()
		case <-better.C:
			looking = looking || look()
		case c := <-found:
			if looking = false; c != nil {
				s.succeed(c)
				looking = true // no more looking
			}
		case <-ctx.Done():
			return
		case <-s.dropped:
			return
		case <-s.mux.CloseChan():
			_, err := s.mux.AcceptStream() // nobody opens streams this way; this gives why the session ended
			s.t.log.Debug("stream session ended", "peer", s.to.String(), "remote", s.conn.RemoteAddr(), "err", err)
			if errors.Is(err, yamux.ErrKeepAliveTimeout) || isTimeout(err) {
				s.t.cfg.Dialer.ReportFailure(s.conn, err)
			}
			return
		case <-tick.C:
			if empty++; s.mux.NumStreams() > 0 {
				empty = 0
			}
			// Not at the first: the end of the last stream may still be unread, here or there.
			idle := time.Since(time.Unix(0, s.used.Load()))
			if empty > 1 && (s.isGone() || idle >= s.t.tm.session) {
				return
			}
			tick.Reset(s.t.tm.session / 4) // no two looks at once where this one was late
		}
	}
}

// dead says whether no stream can be opened any more.
func (s *session) dead(err error) bool {
	return s.mux.IsClosed() || errors.Is(err, errSilentSession) ||
		errors.Is(err, yamux.ErrRemoteGoAway) || errors.Is(err, yamux.ErrStreamsExhausted)
}

func (s *session) snapshot() SessionStatus {
	st := SessionStatus{DC: s.to.dc, Node: s.to.node}
	if s.isReady() && s.mux != nil {
		st.ConnectedSince, st.Streams, st.Path = s.since, s.mux.NumStreams(), pathOf(s.conn).hop
	}
	return st
}
