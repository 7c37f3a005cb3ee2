// SPDX-License-Identifier: MPL-2.0

package wanfed

import (
	"context"
	"crypto/tls"
	"time"
)

// A session that is doubted is tested, and a spare is opened another way meanwhile: when the test says that the session is dead, the
// spare takes its place, and has had that time. When the session is alive, the spare is dropped, most often before its handshake is
// done. So that a peer which is merely slow does not cost a dial each time, the next spare then has to wait, twice as long each time.
const (
	minSpareRest = 250 * time.Millisecond
	maxSpareRest = time.Minute
)

// spares is what a session knows of its spare, and a spare of its session.
type spares struct {
	doubts int       // tests of this session under way; guarded by t.mu, like
	next   *session  // its spare; nil: none,
	rest   backoff   // how long none is opened after one that was not needed,
	until  time.Time // and until when

	beside  *session      // of a spare: the session that is doubted; guarded by t.mu. Nil: this session is none, or none any more
	ways    []Path        // of a spare: those of its first dial. Never changed
	dropped chan struct{} // of a spare: closed when it is not needed. Nil: this session was none
}

// suspect opens a spare while the caller tests s. settle, to be called once, says what the test found: alive, or else not; that s is
// dead is said by forgetting it, before. A spare that did not take the place of s by then is dropped.
func (s *session) suspect() (settle func(alive bool)) {
	s.t.mu.Lock()
	defer s.t.mu.Unlock()
	s.doubts++
	s.openSpareLocked(time.Now())
	return func(alive bool) {
		s.t.mu.Lock()
		defer s.t.mu.Unlock()
		if s.doubts--; alive || s.doubts == 0 {
			s.dropSpareLocked(time.Now())
		}
	}
}

func (s *session) openSpareLocked(now time.Time) {
	if s.next != nil || s.t.sessions[s.to] != s || s.to.dc == s.t.own.DC || now.Before(s.until) {
		return
	}
	ways := s.t.cfg.Dialer.elsewhere(s.conn, Target{DC: s.to.dc})
	if len(ways) == 0 {
		return
	}
	if now.Sub(s.until) > maxSpareRest {
		s.rest = backoff{min: minSpareRest, max: maxSpareRest}
	}
	n := newSession(s.t, s.to, s.addr)
	n.beside, n.ways, n.dropped = s, ways, make(chan struct{})
	if s.t.life.start(n.run) {
		s.next = n
	}
}

func (s *session) dropSpareLocked(now time.Time) {
	if s.next != nil {
		close(s.next.dropped)
		s.noSpareLocked(now)
	}
}

// noSpareLocked is called when the spare is not needed, or could not be opened.
func (s *session) noSpareLocked(now time.Time) {
	s.next.beside, s.next, s.until = nil, nil, now.Add(s.rest.next(0))
}

// takeOverLocked puts the spare of s, if it has one, in its place, which is free.
func (s *session) takeOverLocked() {
	if s.next != nil {
		s.t.sessions[s.to] = s.next
		s.next.beside, s.next = nil, nil
	}
}

// failed is called when s could not be opened: if it is a spare, its session has none any more.
func (s *session) failed() {
	s.t.mu.Lock()
	defer s.t.mu.Unlock()
	if s.beside != nil {
		s.beside.noSpareLocked(time.Now())
	}
}

// dialOnce dials: for the first time a spare goes another way than its session.
func (s *session) dialOnce(ctx context.Context, first bool) (*tls.Conn, error) {
	if !first || len(s.ways) == 0 {
		return s.t.dial(ctx, s.to, s.addr, ProtoStream, ProtoConsulStream)
	}
	ctx, cancel := context.WithTimeout(ctx, s.t.tm.dial)
	defer cancel()
	return s.t.cfg.Dialer.dialHops(ctx, Target{DC: s.to.dc}, s.ways, []string{ProtoStream, ProtoConsulStream})
}

// broke notes that s was found dead by the fault of its way. When its spare works over the same first gateway, it was no fault of that.
func (s *session) broke(err error) {
	s.t.mu.RLock()
	n := s.t.sessions[s.to]
	s.t.mu.RUnlock()
	if n == nil || !n.isReady() || n.conn == nil || pathOf(n.conn).hop.Addr != pathOf(s.conn).hop.Addr {
		s.t.cfg.Dialer.ReportFailure(s.conn, err)
	}
}
