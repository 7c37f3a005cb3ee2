// SPDX-License-Identifier: MPL-2.0

package limit

import (
	"context"
	"sync"

	"golang.org/x/sync/semaphore"

	"github.com/wanfed/wanfed/tlsutil"
)

// PerPeer has a semaphore for each peer.
type PerPeer struct {
	size func(tlsutil.Peer) int64

	mu    sync.Mutex
	peers map[tlsutil.Peer]*peerSemaphore
}

type peerSemaphore struct {
	*semaphore.Weighted
	users int // slots that are held or awaited; guarded by PerPeer.mu
}

// New returns a PerPeer. size returns how many slots a peer may hold at a time.
// It must return the same number for the same peer.
func New(size func(tlsutil.Peer) int64) *PerPeer {
	return &PerPeer{size: size, peers: map[tlsutil.Peer]*peerSemaphore{}}
}

// Acquire waits for a slot of peer p until ctx ends. The only error is that of
// ctx.
func (l *PerPeer) Acquire(ctx context.Context, p tlsutil.Peer) (*Slot, error) {
	s := l.slot(p)
	if err := s.sem.Acquire(ctx, 1); err != nil {
		s.Release()
		return nil, err
	}
	s.held = true
	return s, nil
}

// TryAcquire returns a slot of peer p, or nil if none is free.
func (l *PerPeer) TryAcquire(p tlsutil.Peer) *Slot {
	s := l.slot(p)
	if !s.sem.TryAcquire(1) {
		s.Release()
		return nil
	}
	s.held = true
	return s
}

// slot returns a slot that is not held yet.
func (l *PerPeer) slot(p tlsutil.Peer) *Slot {
	l.mu.Lock()
	defer l.mu.Unlock()
	sem := l.peers[p]
	if sem == nil {
		sem = &peerSemaphore{Weighted: semaphore.NewWeighted(l.size(p))}
		l.peers[p] = sem
	}
	sem.users++
	return &Slot{limit: l, peer: p, sem: sem}
}

func (l *PerPeer) leave(p tlsutil.Peer, sem *peerSemaphore) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if sem.users--; sem.users == 0 {
		delete(l.peers, p)
	}
}

// Slot is one slot of a peer.
type Slot struct {
	limit *PerPeer
	peer  tlsutil.Peer
	sem   *peerSemaphore

	mu             sync.Mutex
	held, released bool
}

// Release frees the slot. It may be called more than once, at any time, and on
// nil.
func (s *Slot) Release() {
	if s == nil {
		return
	}
	s.mu.Lock()
	held, first := s.held, !s.released
	s.held, s.released = false, true
	s.mu.Unlock()
	if held {
		s.sem.Release(1)
	}
	if first {
		s.limit.leave(s.peer, s.sem)
	}
}

type slotKey struct{}

// NewContext returns a context that carries s for Pause.
func NewContext(ctx context.Context, s *Slot) context.Context {
	return context.WithValue(ctx, slotKey{}, s)
}

// Pause calls wait without the slot that ctx carries, if it carries one, and
// then acquires the slot again. It returns the error of wait, or else that of
// ctx. If the slot was released during wait, it stays released.
func Pause(ctx context.Context, wait func() error) error {
	s, _ := ctx.Value(slotKey{}).(*Slot)
	if s == nil {
		return wait()
	}
	s.mu.Lock()
	held := s.held
	s.held = false
	s.mu.Unlock()
	if held {
		s.sem.Release(1)
	}
	err := wait()
	if resumed := s.resume(ctx); err == nil {
		err = resumed
	}
	return err
}

func (s *Slot) resume(ctx context.Context) error {
	if err := s.sem.Acquire(ctx, 1); err != nil {
		return err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.released {
		s.sem.Release(1)
		return nil
	}
	s.held = true
	return nil
}
