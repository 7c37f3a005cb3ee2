// SPDX-License-Identifier: MPL-2.0

package wanfed

import (
	"container/list"
	"net/netip"
	"runtime"
	"sync"
)

// admission is a semaphore for the processor time of TLS handshakes. It is fair
// by source: the sources that wait take slots in turns, and the handshakes of
// one source in the order in which they came. A source that opens many
// connections therefore delays its own handshakes, and those of other sources
// by at most one handshake per slot.
//
// A handshake needs a slot while it computes, not while it waits for bytes of
// the peer. The number of handshakes that wait for a slot is bounded by
// handshakeLimit.
type admission struct {
	mu      sync.Mutex
	free    int                     // slots; 0 while a handshake waits
	waiting map[netip.Prefix]*queue // by source
	order   list.List               // of *queue: the sources that wait, the next one first
}

// queue has the handshakes of one source that wait for a slot.
type queue struct {
	source  netip.Prefix
	slots   []chan struct{} // closed to grant a slot; not empty
	element *list.Element   // in admission.order
}

// newAdmission returns an admission with slots for half of the processors. The
// others remain for requests.
func newAdmission() *admission {
	return &admission{free: max(1, runtime.GOMAXPROCS(0)/2), waiting: map[netip.Prefix]*queue{}}
}

// acquire waits for a slot.
func (a *admission) acquire(source netip.Prefix) {
	a.mu.Lock()
	if a.free > 0 {
		a.free--
		a.mu.Unlock()
		return
	}
	q := a.waiting[source]
	if q == nil {
		q = &queue{source: source}
		q.element = a.order.PushBack(q)
		a.waiting[source] = q
	}
	slot := make(chan struct{})
	q.slots = append(q.slots, slot)
	a.mu.Unlock()
	<-slot
}

// release passes the slot to the next source that waits.
func (a *admission) release() {
	a.mu.Lock()
	defer a.mu.Unlock()
	front := a.order.Front()
	if front == nil {
		a.free++
		return
	}
	q := front.Value.(*queue)
	close(q.slots[0])
	if q.slots = q.slots[1:]; len(q.slots) > 0 {
		a.order.MoveToBack(front)
	} else {
		a.order.Remove(front)
		delete(a.waiting, q.source)
	}
}

// admitted is the use of an admission by one handshake. The zero value uses
// none.
type admitted struct {
	from   *admission // nil: the handshake is over, or needs no slot
	source netip.Prefix
	held   bool // a slot
}

// compute waits for a slot, if none is held.
func (a *admitted) compute() {
	if a.from != nil && !a.held {
		a.from.acquire(a.source)
		a.held = true
	}
}

// pause releases the slot, if one is held.
func (a *admitted) pause() {
	if a.held {
		a.held = false
		a.from.release()
	}
}
