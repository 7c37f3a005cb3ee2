// SPDX-License-Identifier: MPL-2.0

package gateway

import (
	"container/heap"
	"container/list"
	"errors"
	"net/netip"
	"sync"
	"time"
)

// maxUnfinished bounds the connections of a gateway that wait for the rest of
// their ClientHello.
const maxUnfinished = 1024

// errUnfinished refuses a connection whose place another one needs.
var errUnfinished = &refusal{reason: ReasonLimit, err: errors.New(
	"too many ClientHellos are incomplete, and its source has most of them")}

// unfinishedHellos are the connections whose ClientHello did not arrive with
// the first read. At the limit, the source with most of them gives way: its
// oldest one is closed. Among sources with equally many, it is the one whose
// oldest connection is oldest. A client that stops in the middle of many
// ClientHellos therefore displaces its own connections.
type unfinishedHellos struct {
	max int

	mu       sync.Mutex
	total    int
	bySource map[netip.Addr]*helloSource
	order    helloSources // a heap: the source that gives way next is first
}

// helloSource has the unfinished ClientHellos of one source.
type helloSource struct {
	source netip.Addr
	hellos list.List // of *unfinishedHello, oldest first
	index  int       // in unfinishedHellos.order
}

// unfinishedHello is one connection in unfinishedHellos.
type unfinishedHello struct {
	close   func(why error) // closes the connection later or from another goroutine
	begin   time.Time
	source  *helloSource // nil: not in unfinishedHellos
	element *list.Element
}

func newUnfinishedHellos(max int) *unfinishedHellos {
	return &unfinishedHellos{max: max, bySource: map[netip.Addr]*helloSource{}}
}

// add adds h, a connection of the client addr. At the limit, it removes and
// closes another connection. It calls close of that connection without a lock.
func (u *unfinishedHellos) add(h *unfinishedHello, addr netip.Addr) {
	if victim := u.insert(h, addr); victim != nil {
		victim.close(errUnfinished)
	}
}

// insert adds h and returns the connection that gives way, or nil.
func (u *unfinishedHellos) insert(h *unfinishedHello, addr netip.Addr) (victim *unfinishedHello) {
	if addr.IsValid() {
		addr = sourceOf(addr)
	}
	u.mu.Lock()
	defer u.mu.Unlock()
	if u.total >= u.max {
		victim = u.order[0].oldest()
		u.removeLocked(victim)
	}
	s := u.bySource[addr]
	if s == nil {
		s = &helloSource{source: addr}
		u.bySource[addr] = s
	}
	h.source, h.element = s, s.hellos.PushBack(h)
	if u.total++; s.hellos.Len() == 1 {
		heap.Push(&u.order, s)
	} else {
		heap.Fix(&u.order, s.index)
	}
	return victim
}

// remove removes h. It may be called again.
func (u *unfinishedHellos) remove(h *unfinishedHello) {
	u.mu.Lock()
	defer u.mu.Unlock()
	u.removeLocked(h)
}

func (u *unfinishedHellos) removeLocked(h *unfinishedHello) {
	s := h.source
	if s == nil {
		return
	}
	s.hellos.Remove(h.element)
	h.source, h.element = nil, nil
	if u.total--; s.hellos.Len() == 0 {
		heap.Remove(&u.order, s.index)
		delete(u.bySource, s.source)
	} else {
		heap.Fix(&u.order, s.index)
	}
}

func (u *unfinishedHellos) len() int {
	u.mu.Lock()
	defer u.mu.Unlock()
	return u.total
}

// helloSources implements heap.Interface. No source is empty.
type helloSources []*helloSource

func (s helloSources) Len() int { return len(s) }

func (s helloSources) Less(i, j int) bool {
	if a, b := s[i].hellos.Len(), s[j].hellos.Len(); a != b {
		return a > b
	}
	return s[i].oldest().begin.Before(s[j].oldest().begin)
}

func (s helloSources) Swap(i, j int) {
	s[i], s[j] = s[j], s[i]
	s[i].index, s[j].index = i, j
}

func (s *helloSources) Push(x any) {
	x.(*helloSource).index = len(*s)
	*s = append(*s, x.(*helloSource))
}

func (s *helloSources) Pop() any {
	last := len(*s) - 1
	x := (*s)[last]
	(*s)[last] = nil
	*s = (*s)[:last]
	return x
}

// oldest returns the connection that is closed when the source gives way.
func (s *helloSource) oldest() *unfinishedHello { return s.hellos.Front().Value.(*unfinishedHello) }
