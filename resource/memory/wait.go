// SPDX-License-Identifier: MPL-2.0

package memory

import (
	"context"
	"errors"
	"fmt"

	"github.com/wanfed/wanfed/resource"
)

// Wait is resource.Backend's.
func (s *State) Wait(ctx context.Context, q resource.Query, after uint64) error {
	sel, err := newSelection(q)
	if err != nil {
		return err
	}
	sel.version = "" // an index is of all versions
	for {
		err := s.waitOnce(ctx, sel, after)
		switch {
		case errors.Is(err, resource.ErrWatchReset): // what it waited for may be there
		case err != nil && ctx.Err() != nil:
			return fmt.Errorf("wait for %s above index %d: %w", resource.TypeString(q.Type), after, err)
		default:
			return err
		}
	}
}

func (s *State) waitOnce(ctx context.Context, sel selection, after uint64) error {
	w, v, err := s.follow(sel)
	if err != nil {
		return err
	}
	defer w.Close()
	if v.index > after && sel.above(v.db, after) {
		return nil
	}
	for {
		p, at, err := w.take()
		switch {
		case err != nil:
			return err
		case p != nil && resourceOf(p.WatchEvent).GetModifyIndex() > after:
			return nil
		case p == nil:
			if err := w.sleep(ctx, at); err != nil {
				return err
			}
		}
	}
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

// wakeLocked wakes those who wait, without the caller waiting for them.
func (w *wakeup) wakeLocked() {
	if w.changed != nil {
		close(w.changed)
		w.changed = nil
	}
}

// WaitIndex returns when the state's index is at least index, or ctx ends (its error).
func (s *State) WaitIndex(ctx context.Context, index uint64) error {
	for {
		s.mu.Lock()
		if s.closed.Load() {
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
