// SPDX-License-Identifier: MPL-2.0

package memory

import (
	"sync"
	"time"

	"github.com/wanfed/wanfed/resource"
)

// standLimit is how long a watch may stand still whose snapshot is not read to its end, while much changes.
const standLimit = 10 * time.Second

// snapshots are the watches whose snapshots are not read to their ends. Each keeps the state alive in which it began, so that what
// has been replaced since stays in memory: that of one that stands still, since its client reads nothing, must not be for ever.
// Time alone ends none: while little changes, little is kept.
type snapshots struct {
	mu      sync.Mutex
	watches map[*watch]struct{}
	changes int // since the last look
}

func (s *snapshots) add(w *watch) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.watches == nil {
		s.watches = make(map[*watch]struct{})
	}
	s.watches[w] = struct{}{}
}

func (s *snapshots) remove(w *watch) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.watches, w)
}

// changed counts changes, and after each that many ends watches that have stood still for too long.
func (s *snapshots) changed(n, much int) {
	for _, w := range s.due(n, much) {
		w.look(time.Now())
	}
}

func (s *snapshots) due(n, much int) []*watch {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.changes += n; s.changes < much {
		return nil
	}
	s.changes = 0
	all := make([]*watch, 0, len(s.watches))
	for w := range s.watches {
		all = append(all, w)
	}
	return all
}

// look ends the watch if its topic has let go of it, or if it has read nothing since the look at seenAt.
func (w *watch) look(now time.Time) {
	w.mu.Lock()
	defer w.mu.Unlock()
	switch {
	case w.rest == nil:
	case w.at.next.Load() == lost, w.read == w.seen && !w.seenAt.IsZero() && now.Sub(w.seenAt) >= standLimit:
		_ = w.failLocked(resource.ErrWatchReset) // for whoever asks next
	case w.read != w.seen || w.seenAt.IsZero():
		w.seen, w.seenAt = w.read, now
	}
}
