// SPDX-License-Identifier: MPL-2.0

package wanfed

import (
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/hashicorp/yamux"

	"github.com/wanfed/wanfed/internal/broadcast"
)

const (
	// maxUnread bounds the bytes that the peers of one datacenter have sent in
	// their streams, and that this server has not read.
	maxUnread = 2 * streamWindow
	// unreadTimeout is the time for which a frame waits at the limit. Then the
	// session with the most unread bytes of the datacenter is closed.
	unreadTimeout = 2 * time.Second
	// maxIdleBuffer is the memory that a stream without unread bytes keeps.
	maxIdleBuffer = 4 << 10
)

var errUnread = fmt.Errorf("servers of the peer's datacenter have %d unread bytes in their streams", maxUnread)

// unreadLimit bounds the buffers of accepted streams, by datacenter of the peer.
// yamux buffers what arrives in a stream, up to streamWindow, and has no limit
// for a session.
type unreadLimit struct {
	max      int
	released broadcast.Keyed[string] // by datacenter

	mu       sync.Mutex
	held     map[string]int // bytes by datacenter
	sessions map[*unreadSession]struct{}
}

func newUnreadLimit(max int) *unreadLimit {
	return &unreadLimit{max: max, held: map[string]int{}, sessions: map[*unreadSession]struct{}{}}
}

// unreadSession counts the buffers of the streams of one accepted session.
type unreadSession struct {
	limit  *unreadLimit
	dc     string // of the peer
	ctx    context.Context
	stop   context.CancelFunc      // ends the wait of frame
	fail   context.CancelCauseFunc // closes the session
	drains sync.WaitGroup

	// Guarded by limit.mu.
	held    int
	streams map[uint32]*unreadStream // open streams by yamux's id; nil after end
}

// unreadStream counts the buffer of a stream.
type unreadStream struct {
	session *unreadSession
	id      uint32

	// Guarded by limit.mu.
	unread   int  // bytes that have arrived, or are about to arrive
	held     int  // the most of unread since it was last 0, because a buffer does not shrink before
	accepted bool // from yamux; close removes the stream
	gone     bool // the peer has reset the stream
}

// session returns the counts of a session with a peer of dc. fail closes the
// session. The caller calls end at the end of the session.
func (l *unreadLimit) session(ctx context.Context, dc string, fail context.CancelCauseFunc) *unreadSession {
	u := &unreadSession{limit: l, dc: dc, fail: fail, streams: map[uint32]*unreadStream{}}
	u.ctx, u.stop = context.WithCancel(ctx)
	l.mu.Lock()
	defer l.mu.Unlock()
	l.sessions[u] = struct{}{}
	return u
}

// frame counts a frame of the peer before yamux reads its body. It returns false
// if no open stream of this server can read the body. At the limit, it waits until
// other bytes were read.
func (u *unreadSession) frame(h yamuxHead) (keep bool, err error) {
	keep, fits := u.tryFrame(h, false)
	if fits {
		return keep, nil
	}
	timeout := time.NewTicker(unreadTimeout)
	defer timeout.Stop()
	for expired := false; ; {
		released := u.limit.released.Wait(u.dc)
		if keep, fits := u.tryFrame(h, expired); fits {
			return keep, nil
		}
		expired = false
		select {
		case <-released:
		case <-timeout.C:
			expired = true
		case <-u.ctx.Done():
			return false, context.Cause(u.ctx)
		}
	}
}

// tryFrame counts a frame, and returns true for fits, unless its body exceeds the
// limit. In that case, and if expired is set, it closes the session of the
// datacenter that has the most unread bytes.
func (u *unreadSession) tryFrame(h yamuxHead, expired bool) (keep, fits bool) {
	u.limit.mu.Lock()
	defer u.limit.mu.Unlock()
	s := u.streams[h.stream()]
	if s == nil && h.has(yamuxSYN) && u.streams != nil {
		s = &unreadStream{session: u, id: h.stream()}
		u.streams[s.id] = s
	}
	if s != nil && h.has(yamuxRST) {
		s.gone = true
		s.releaseLocked()
	}
	n := int(h.body())
	switch {
	case n == 0:
		return true, true
	case s == nil || s.gone:
		return false, true
	case n > streamWindow:
		return true, true // yamux ends the session
	}
	more := max(0, s.unread+n-s.held)
	if more > 0 && u.limit.held[u.dc]+more > u.limit.max {
		if expired {
			u.limit.closeLargestLocked(u.dc)
		}
		return false, false
	}
	s.unread += n
	s.holdLocked(more)
	return true, true
}

// closeLargestLocked closes the session of dc that has the most unread bytes.
func (l *unreadLimit) closeLargestLocked(dc string) {
	var largest *unreadSession
	for u := range l.sessions {
		if u.dc == dc && u.held > 0 && (largest == nil || u.held > largest.held) {
			largest = u
		}
	}
	if largest != nil {
		largest.fail(errUnread)
		largest.endLocked()
	}
}

// end releases the streams of the session.
func (u *unreadSession) end() {
	u.stop()
	u.limit.mu.Lock()
	u.endLocked()
	u.limit.mu.Unlock()
	u.drains.Wait()
}

func (u *unreadSession) endLocked() {
	for _, s := range u.streams {
		s.releaseLocked()
	}
	u.streams = nil
	delete(u.limit.sessions, u)
}

// accept returns the counts of a stream that was accepted, or nil if yamux has
// reset it.
func (u *unreadSession) accept(id uint32) *unreadStream {
	u.limit.mu.Lock()
	defer u.limit.mu.Unlock()
	s := u.streams[id]
	if s != nil {
		s.accepted = true
	}
	return s
}

// reset counts a stream that yamux resets. It is one above the backlog, or close
// will remove it.
func (u *unreadSession) reset(id uint32) {
	u.limit.mu.Lock()
	defer u.limit.mu.Unlock()
	if s := u.streams[id]; s != nil && !s.accepted {
		s.releaseLocked()
		delete(u.streams, id)
	}
}

// holdLocked counts n more bytes, or fewer if n is negative.
func (s *unreadStream) holdLocked(n int) {
	u := s.session
	s.held, u.held = s.held+n, u.held+n
	if u.limit.held[u.dc] += n; u.limit.held[u.dc] == 0 {
		delete(u.limit.held, u.dc)
	}
	if n < 0 {
		u.limit.released.Notify(u.dc)
	}
}

func (s *unreadStream) releaseLocked() {
	s.unread = 0
	s.holdLocked(-s.held)
}

// read counts n bytes that were read from st. If st has no unread bytes, read
// releases its buffer.
func (s *unreadStream) read(st *yamux.Stream, n int) {
	s.session.limit.mu.Lock()
	defer s.session.limit.mu.Unlock()
	if s.held == 0 {
		return // released, or n is 0
	}
	if s.unread -= n; s.unread == 0 {
		if s.held > maxIdleBuffer {
			st.Shrink() // does not block: no frame of st is arriving
		}
		s.holdLocked(-s.held)
	}
}

// close discards the unread bytes of st, whose read deadline has passed. yamux
// would keep them until the peer closes the stream too. close does not block.
func (s *unreadStream) close(st *yamux.Stream) {
	u := s.session
	u.limit.mu.Lock()
	defer u.limit.mu.Unlock()
	if u.streams[s.id] == s {
		delete(u.streams, s.id)
	}
	if s.unread == 0 {
		return
	}
	u.drains.Go(func() { // blocks while the body of a frame arrives
		b := make([]byte, maxIdleBuffer)
		for n := 1; n > 0; s.read(st, n) {
			n, _ = st.Read(b)
		}
		u.limit.mu.Lock()
		defer u.limit.mu.Unlock()
		s.releaseLocked()
	})
}
