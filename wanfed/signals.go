// SPDX-License-Identifier: MPL-2.0

package wanfed

import "sync"

// signals tells those who wait for something to happen to a datacenter, or to a gateway, that it has just happened. Its zero value is
// ready.
type signals struct {
	mu   sync.Mutex
	next map[string]chan struct{} // by what it happens to; closed and removed
}

// at returns a channel that is closed when it happens to key next.
func (s *signals) at(key string) <-chan struct{} {
	s.mu.Lock()
	defer s.mu.Unlock()
	c := s.next[key]
	if c == nil {
		if s.next == nil {
			s.next = map[string]chan struct{}{}
		}
		c = make(chan struct{})
		s.next[key] = c
	}
	return c
}

func (s *signals) note(key string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if c := s.next[key]; c != nil {
		close(c)
		delete(s.next, key)
	}
}
