// SPDX-License-Identifier: MPL-2.0

package wanfed

import (
	"fmt"
	"sync"
	"time"

	"github.com/hashicorp/yamux"

	"github.com/wanfed/wanfed/internal/broadcast"
)

const (
	// maxUnread bounds the memory for what the peers of one datacenter have sent
	// in their streams, and what this server has not read, in bytes.
	maxUnread = 2 * streamWindow
	// unreadTimeout is the time after which a session at the limit is closed.
	unreadTimeout = 2 * time.Second
	// maxIdleBuffer is the memory that a stream without unread bytes keeps.
	maxIdleBuffer = 4 << 10
)

var errUnread = fmt.Errorf("servers of the peer's datacenter have more than %d unread bytes in their streams", maxUnread)

// unreadLimit counts the memory of the buffers of accepted streams, by
// datacenter of the peer. yamux buffers what arrives in a stream, up to
// streamWindow. It keeps the buffer of a stream that was closed here for
// streamCloseTimeout, also after the end of the session.
type unreadLimit struct {
	max      int
	released broadcast.Keyed[string] // by datacenter

	mu   sync.Mutex
	held map[string]int // bytes by datacenter
}

func newUnreadLimit(max int) *unreadLimit { return &unreadLimit{max: max, held: map[string]int{}} }

// addLocked counts n more bytes for dc, or fewer if n is negative.
func (l *unreadLimit) addLocked(dc string, n int) {
	if l.held[dc] += n; l.held[dc] == 0 {
		delete(l.held, dc)
	}
	if n < 0 {
		l.released.Notify(dc)
	}
}

// unreadSession counts the buffers of the streams of one accepted session.
type unreadSession struct {
	limit  *unreadLimit
	dc     string        // of the peer
	linger time.Duration // yamux keeps a closed stream for at most this time
	stopC  chan struct{} // closed by stopWaiting
	stop   sync.Once

	// Guarded by limit.mu.
	streams map[uint32]*unreadStream // by yamux's id; nil after end
}

// unreadStream is a stream that yamux has not released.
type unreadStream struct {
	unread int         // bytes that have arrived, or are about to arrive
	held   int         // bytes that have arrived since unread was last 0: the size of the buffer
	ended  bool        // the peer has ended its direction
	closed *time.Timer // releases the stream; nil: it was not closed here
}

func (l *unreadLimit) session(dc string, linger time.Duration) *unreadSession {
	return &unreadSession{
		limit: l, dc: dc, linger: linger, stopC: make(chan struct{}), streams: map[uint32]*unreadStream{},
	}
}

// frame counts a frame of the peer before yamux reads its body. At the limit,
// it waits until other bytes were read. It returns an error after
// unreadTimeout, and if the peer opens too many streams.
func (u *unreadSession) frame(h yamuxHead) error {
	u.limit.mu.Lock()
	err := u.frameLocked(h)
	u.limit.mu.Unlock()
	if err != nil || h.body() == 0 {
		return err
	}
	timeout := time.NewTimer(unreadTimeout)
	defer timeout.Stop()
	for {
		released := u.limit.released.Wait(u.dc)
		if !u.isOver() {
			return nil
		}
		select {
		case <-released:
		case <-u.stopC:
			return nil
		case <-timeout.C:
			return errUnread
		}
	}
}

// stopWaiting ends the wait of frame.
func (u *unreadSession) stopWaiting() { u.stop.Do(func() { close(u.stopC) }) }

func (u *unreadSession) isOver() bool {
	u.limit.mu.Lock()
	defer u.limit.mu.Unlock()
	return u.limit.held[u.dc] > u.limit.max
}

func (u *unreadSession) frameLocked(h yamuxHead) error {
	if u.streams == nil || h.body() > streamWindow {
		return nil // the session has ended, or yamux ends it
	}
	id, body := h.stream(), int(h.body())
	if _, known := u.streams[id]; h.has(yamuxSYN) && !known {
		if len(u.streams) >= 2*maxOpenStreams { // yamux has refused those above its backlog
			return errTooManyStreams
		}
		u.streams[id] = &unreadStream{}
	}
	s := u.streams[id]
	if s == nil {
		return nil // yamux discards the body
	}
	s.unread, s.held = s.unread+body, s.held+body
	u.limit.addLocked(u.dc, body)
	s.ended = s.ended || h.has(yamuxFIN)
	if h.has(yamuxRST) || s.ended && s.closed != nil {
		u.releaseLocked(id, s)
	}
	return nil
}

// read counts n bytes that were read from st. If st has no unread bytes, read
// releases its buffer.
func (u *unreadSession) read(st *yamux.Stream, n int) {
	u.limit.mu.Lock()
	defer u.limit.mu.Unlock()
	s := u.streams[st.StreamID()]
	if s == nil {
		return
	}
	if s.unread -= n; s.unread == 0 {
		if s.held > maxIdleBuffer {
			st.Shrink() // does not block: no frame of st is arriving
		}
		u.limit.addLocked(u.dc, -s.held)
		s.held = 0
	}
}

// close counts the end of the sending direction of a stream, after which yamux
// waits for the end of the other direction.
func (u *unreadSession) close(id uint32) {
	u.limit.mu.Lock()
	defer u.limit.mu.Unlock()
	switch s := u.streams[id]; {
	case s == nil || s.closed != nil:
	case s.ended:
		u.releaseLocked(id, s)
	default:
		s.closed = time.AfterFunc(u.linger, func() {
			u.limit.mu.Lock()
			defer u.limit.mu.Unlock()
			if u.streams[id] == s {
				u.releaseLocked(id, s)
			}
		})
	}
}

func (u *unreadSession) releaseLocked(id uint32, s *unreadStream) {
	if s.closed != nil {
		s.closed.Stop()
	}
	u.limit.addLocked(u.dc, -s.held)
	delete(u.streams, id)
}

// end counts the end of the session. Its memory counts for linger more.
func (u *unreadSession) end() {
	u.limit.mu.Lock()
	defer u.limit.mu.Unlock()
	held := 0
	for _, s := range u.streams {
		if s.closed != nil {
			s.closed.Stop()
		}
		held += s.held
	}
	if u.streams = nil; held > 0 {
		time.AfterFunc(u.linger, func() {
			u.limit.mu.Lock()
			defer u.limit.mu.Unlock()
			u.limit.addLocked(u.dc, -held)
		})
	}
}
