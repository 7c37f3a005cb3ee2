// SPDX-License-Identifier: MPL-2.0

package gateway

import (
	"container/heap"
	"time"
)

// timer is what a search has to be among a worker's timers.
type timer struct {
	at    time.Time
	place int // in the heap, counted from one; zero: not in it
}

// timers are the searches of a worker, the one that is due first in front.
type timers []*search

// set makes s due at a time.
func (h *timers) set(s *search, at time.Time) {
	s.at = at
	if s.place == 0 {
		heap.Push(h, s)
	} else {
		heap.Fix(h, s.place-1)
	}
}

// stop takes s out. It may be called again.
func (h *timers) stop(s *search) {
	if s.place > 0 {
		heap.Remove(h, s.place-1)
	}
}

// expire has those act that are due, and returns how long it is until the next one is; negative: there is none.
func (h *timers) expire(w *worker) time.Duration {
	for len(*h) > 0 {
		s := (*h)[0]
		if left := s.at.Sub(w.now); left > 0 {
			return left
		}
		s.expire(w) // which sets it to a later time, or takes it out
	}
	return -1
}

// The methods of heap.Interface.

func (h timers) Len() int           { return len(h) }
func (h timers) Less(i, j int) bool { return h[i].at.Before(h[j].at) }
func (h timers) Swap(i, j int) {
	h[i], h[j] = h[j], h[i]
	h[i].place, h[j].place = i+1, j+1
}

func (h *timers) Push(x any) {
	s := x.(*search)
	*h = append(*h, s)
	s.place = len(*h)
}

func (h *timers) Pop() any {
	old := *h
	n := len(old) - 1
	s := old[n]
	old[n] = nil
	*h, s.place = old[:n], 0
	return s
}
