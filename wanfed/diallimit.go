// SPDX-License-Identifier: MPL-2.0

package wanfed

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"time"
)

// dialClass is the priority of a dial of another datacenter.
type dialClass int

const (
	dialStreams dialClass = iota // for streams, whose callers wait
	dialPackets                  // for packets of gossip
	dialRetry                    // every path has failed, or the connection has a working path
	dialClasses
)

const (
	// Bounds of the slots of a dialLimit, and their number at the start.
	minDials, firstDials, maxDials = 4, 16, 128
	// A dial that takes longer than slowDial lowers the number of slots.
	slowDial = time.Second
	// dialWeight is the inverse weight of a new sample in dialLimit.usual.
	dialWeight = 4
	// maxStagger bounds dialLimit.stagger.
	maxStagger = 2 * time.Second
	// retryShare is the fraction of the slots that dials of class dialRetry may
	// use, and of the grants that they get while other dials wait.
	retryShare = 4
)

// dialLimit bounds the concurrent dials of other datacenters. Without a bound,
// the dials of an overloaded machine slow each other down until they time out.
// They are then repeated, and the machine stays overloaded.
//
// The number of slots adapts to the dials that succeed: a fast dial adds a
// slot, a slow dial removes a fourth. A dial has one slot for all paths that it
// tries. A dial that takes much longer than usual loses its slot, because its
// paths probably drop packets and use no processor time. The limit thus does
// not delay the dials of other datacenters for long.
//
// Dials wait in the order of their class, then of their arrival.
type dialLimit struct {
	timeout time.Duration // after which a dial loses its slot at the latest

	mu       sync.Mutex
	slots    int
	active   [dialClasses]int
	waiting  [dialClasses][]*dialSlot // oldest first
	grants   int
	usual    time.Duration // smoothed duration of successful dials; 0: none has succeeded
	lowered  time.Time     // when slots was lowered
	released chan struct{} // size 1: a slot was released
}

// dialSlot is the slot of one dial. The mutex of the dialLimit guards its
// fields.
type dialSlot struct {
	l       *dialLimit
	class   dialClass
	granted chan struct{} // closed when the dial has the slot
	active  bool
	expiry  *time.Timer // takes the slot from a dial that is much slower than usual
}

func newDialLimit(timeout time.Duration) *dialLimit {
	return &dialLimit{timeout: timeout, slots: firstDials, released: make(chan struct{}, 1)}
}

// acquire waits for a slot. The caller calls release.
func (l *dialLimit) acquire(ctx context.Context, class dialClass) (*dialSlot, error) {
	s := &dialSlot{l: l, class: class, granted: make(chan struct{})}
	l.mu.Lock()
	l.waiting[class] = append(l.waiting[class], s)
	l.grantLocked()
	l.mu.Unlock()
	select {
	case <-s.granted:
		return s, nil
	case <-ctx.Done():
		s.release()
		return nil, fmt.Errorf("wait for other dials to finish: %w", context.Cause(ctx))
	}
}

// grantLocked passes free slots to waiting dials.
func (l *dialLimit) grantLocked() {
	for l.busyLocked() < l.slots {
		class := l.nextLocked()
		if class == dialClasses {
			return
		}
		s := l.waiting[class][0]
		l.waiting[class] = l.waiting[class][1:]
		l.active[class]++
		l.grants++
		s.active = true
		limit := l.timeout
		if l.usual > 0 {
			limit = min(max(2*l.usual, slowDial), limit)
		}
		s.expiry = time.AfterFunc(limit, s.release)
		close(s.granted)
	}
}

// nextLocked returns the class of the next dial, or dialClasses if no dial may
// start.
func (l *dialLimit) nextLocked() dialClass {
	retry := len(l.waiting[dialRetry]) > 0 && l.active[dialRetry] < max(1, l.slots/retryShare)
	if retry && l.grants%retryShare == 0 {
		return dialRetry
	}
	for class := range dialRetry {
		if len(l.waiting[class]) > 0 {
			return class
		}
	}
	if retry {
		return dialRetry
	}
	return dialClasses
}

func (l *dialLimit) busyLocked() (n int) {
	for _, active := range l.active {
		n += active
	}
	return n
}

// release ends the use of the slot, or the wait for it. It may be called again.
func (s *dialSlot) release() {
	l := s.l
	l.mu.Lock()
	defer l.mu.Unlock()
	if !s.active {
		l.waiting[s.class] = slices.DeleteFunc(l.waiting[s.class], func(w *dialSlot) bool { return w == s })
		return
	}
	s.active = false
	s.expiry.Stop()
	l.active[s.class]--
	l.grantLocked()
	select {
	case l.released <- struct{}{}:
	default:
	}
}

// succeeded records the duration of a successful attempt.
func (l *dialLimit) succeeded(took time.Duration, now time.Time) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.usual == 0 {
		l.usual = took
	}
	l.usual += (took - l.usual) / dialWeight
	switch {
	case took > slowDial && now.Sub(l.lowered) >= l.usual: // once per round of dials
		l.slots, l.lowered = max(minDials, l.slots-l.slots/4), now
	case took < slowDial/2 && 2*l.busyLocked() >= l.slots:
		l.slots = min(maxDials, l.slots+1)
		l.grantLocked()
	}
}

// stagger returns the time after which the next path is dialed in parallel:
// least, or one and a half times the usual duration of a dial. With a shorter
// time, slow dials would cause more dials without a use.
func (l *dialLimit) stagger(least time.Duration) time.Duration {
	l.mu.Lock()
	defer l.mu.Unlock()
	return max(least, min(l.usual*3/2, maxStagger))
}

// yield waits until few dials are in progress, for at most limit.
func (l *dialLimit) yield(ctx context.Context, limit time.Duration) {
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	for ctx.Err() == nil && l.isBusy() {
		select {
		case <-l.released:
		case <-ctx.Done():
		}
	}
}

func (l *dialLimit) isBusy() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return 4*l.busyLocked() > l.slots
}
