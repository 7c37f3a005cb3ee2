// SPDX-License-Identifier: MPL-2.0

package wanfed

import "sync"

// worked tells those that wait before they dial a datacenter again that somebody else's dial of it has just worked.
type worked struct {
	mu   sync.Mutex
	next map[string]chan struct{} // by datacenter; closed and removed
}

// at returns a channel that is closed when the next dial of dc works.
func (w *worked) at(dc string) <-chan struct{} {
	w.mu.Lock()
	defer w.mu.Unlock()
	c := w.next[dc]
	if c == nil {
		if w.next == nil {
			w.next = map[string]chan struct{}{}
		}
		c = make(chan struct{})
		w.next[dc] = c
	}
	return c
}

func (w *worked) note(dc string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if c := w.next[dc]; c != nil {
		close(c)
		delete(w.next, dc)
	}
}
