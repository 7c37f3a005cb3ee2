// SPDX-License-Identifier: MPL-2.0

package limit

import (
	"cmp"
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

// New returns a PerPeer. size returns the number of slots of a peer. It must
// always return the same number for the same peer.
func New(size func(tlsutil.Peer) int64) *PerPeer {
	return &PerPeer{size: size, peers: map[tlsutil.Peer]*peerSemaphore{}}
}

// Acquire waits for a slot of peer p until ctx ends. It fails only with the
// error of ctx.
func (l *PerPeer) Acquire(ctx context.Context, p tlsutil.Peer) (*Slot, error) {
	s := l.newSlot(p)
	if err := s.sem.Acquire(ctx, 1); err != nil {
		s.Release()
		return nil, err
	}
	s.held = true
	return s, nil
}

// TryAcquire returns a slot of peer p, or nil if all slots of p are held.
func (l *PerPeer) TryAcquire(p tlsutil.Peer) *Slot {
	s := l.newSlot(p)
	if s.held = s.sem.TryAcquire(1); !s.held {
		s.Release()
		return nil
	}
	return s
}

// newSlot returns a slot of p that is not held yet.
func (l *PerPeer) newSlot(p tlsutil.Peer) *Slot {
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

// Slot is one slot of a peer.
type Slot struct {
	limit *PerPeer
	peer  tlsutil.Peer
	sem   *peerSemaphore

	mu             sync.Mutex // locked before PerPeer.mu
	held, released bool
}

// Release frees the slot. It may be called more than once, at any time, and on
// nil.
func (s *Slot) Release() {
	if s == nil {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.held {
		s.sem.Release(1)
	}
	if !s.released {
		s.limit.mu.Lock()
		defer s.limit.mu.Unlock()
		if s.sem.users--; s.sem.users == 0 {
			delete(s.limit.peers, s.peer)
		}
	}
	s.held, s.released = false, true
}

type slotKey struct{}

// NewContext returns a context that carries s for Pause.
func NewContext(ctx context.Context, s *Slot) context.Context {
	return context.WithValue(ctx, slotKey{}, s)
}

// Pause releases the slot that ctx carries, if any, calls wait, and acquires
// the slot again. Pause returns the error of wait, or otherwise the error of
// ctx. A slot that Release frees during wait stays free.
func Pause(ctx context.Context, wait func() error) error {
	s, _ := ctx.Value(slotKey{}).(*Slot)
	if s == nil {
		return wait()
	}
	s.mu.Lock()
	if s.held {
		s.held = false
		s.sem.Release(1)
	}
	s.mu.Unlock()
	err := wait()
	return cmp.Or(err, s.resume(ctx))
}

// resume acquires the slot again after a pause.
func (s *Slot) resume(ctx context.Context) error {
	if err := s.sem.Acquire(ctx, 1); err != nil {
		return err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.held = !s.released; s.released {
		s.sem.Release(1)
	}
	return nil
}
