// SPDX-License-Identifier: MPL-2.0

package memory

import (
	"context"
	"fmt"

	"github.com/wanfed/wanfed/api/pb"
	"github.com/wanfed/wanfed/resource"
)

// topic is what watchers and waiters of one type share. State.mu guards it.
type topic struct {
	index  uint64 // of the last write to the type, at least 1
	wakeup        // at the next write, restore or close

	// log has the latest commits, oldest first; that of log[0] is number first. It is empty while watchers is 0. The
	// latest commit stays whatever its size, so that a watch which keeps up sees it.
	log      [][]*pb.WatchEvent
	first    uint64
	events   int // in log
	watchers int
}

func (s *State) topicLocked(key string) *topic {
	t := s.topics[key]
	if t == nil {
		t = &topic{index: 1}
		s.topics[key] = t
	}
	return t
}

func (t *topic) publishLocked(index uint64, events []*pb.WatchEvent, keep int) {
	t.index = index
	if t.watchers > 0 {
		t.log = append(t.log, events)
		t.events += len(events)
		for t.events > keep && len(t.log) > 1 {
			t.events -= len(t.log[0])
			t.log[0] = nil
			t.log = t.log[1:]
			t.first++
		}
	} else {
		t.first++
	}
	t.wakeLocked()
}

// nextLocked is the number that the next commit will have.
func (t *topic) nextLocked() uint64 { return t.first + uint64(len(t.log)) }

func (t *topic) joinLocked() (position uint64) {
	t.watchers++
	return t.nextLocked()
}

func (t *topic) leaveLocked() {
	t.watchers--
	if t.watchers == 0 {
		t.dropLocked()
	}
}

// dropLocked forgets the log. Positions before its end are too old from then on.
func (t *topic) dropLocked() {
	t.first = t.nextLocked()
	t.log, t.events = nil, 0
}

// sinceLocked returns the commits from position on; ok is false if the log no longer reaches back to it.
func (t *topic) sinceLocked(position uint64) (commits [][]*pb.WatchEvent, ok bool) {
	if position < t.first {
		return nil, false
	}
	return t.log[position-t.first:], true
}

// wakeup wakes whoever waits for something to happen the next time. It costs nothing while nobody waits. State.mu guards it.
type wakeup struct{ changed chan struct{} }

// waitLocked returns a channel that is closed the next time.
func (w *wakeup) waitLocked() <-chan struct{} {
	if w.changed == nil {
		w.changed = make(chan struct{})
	}
	return w.changed
}

func (w *wakeup) wakeLocked() {
	if w.changed != nil {
		close(w.changed)
		w.changed = nil
	}
}

// Wait is resource.Backend's.
func (s *State) Wait(ctx context.Context, q resource.Query, after uint64) error {
	sel, err := newSelection(q)
	if err != nil {
		return err
	}
	for {
		changed, err := s.pollIndex(sel.typ, after)
		if err != nil || changed == nil {
			return err
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return fmt.Errorf("wait for %s above index %d: %w", resource.TypeString(q.Type), after, ctx.Err())
		}
	}
}

// pollIndex returns nil if the index is above after, else a channel that is closed when it may be.
func (s *State) pollIndex(key string, after uint64) (<-chan struct{}, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return nil, resource.ErrClosed
	}
	t := s.topicLocked(key)
	if t.index > after {
		return nil, nil
	}
	return t.waitLocked(), nil
}

// WaitIndex returns when the state's index is at least index, or ctx ends (its error).
func (s *State) WaitIndex(ctx context.Context, index uint64) error {
	for {
		s.mu.Lock()
		if s.closed {
			s.mu.Unlock()
			return resource.ErrClosed
		}
		at, moved := s.index, (<-chan struct{})(nil)
		if at < index {
			moved = s.moved.waitLocked()
		}
		s.mu.Unlock()
		if moved == nil {
			return nil
		}
		select {
		case <-moved:
		case <-ctx.Done():
			return fmt.Errorf("wait for index %d, at %d: %w", index, at, ctx.Err())
		}
	}
}
