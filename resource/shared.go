// SPDX-License-Identifier: MPL-2.0

package resource

import (
	"context"
	"errors"
	"runtime"
	"sync"
)

// shared is a question that many ask at once: those who come before it is put share it, and those who come later the next one, so that
// no answer is of a question that was put before its asker came. The one who finds nobody asking, or who was waked first, asks for
// all, with its own context. It has no goroutines.
type shared[T any] struct {
	ask func(ctx context.Context) (T, error)

	mu   sync.Mutex
	now  *asking[T] // being asked, or about to be; nil: nobody asks
	next *asking[T] // those who came meanwhile; nil: nobody
}

// asking is one question for several.
type asking[T any] struct {
	turn    chan struct{} // size 1: whoever takes what is in it asks
	done    chan struct{} // closed when the answer is there
	waiters int           // guarded by shared.mu, as is begun
	begun   bool          // the question was put
	got     T
	err     error
	ended   bool // the context of who asked did: it is no answer for others
}

// get returns an answer to a question that was put after the call of get. It returns when ctx ends.
func (s *shared[T]) get(ctx context.Context) (T, error) {
	for {
		s.mu.Lock()
		if s.now == nil {
			a := newAsking[T]()
			s.now = a
			s.mu.Unlock()
			return s.run(ctx, a)
		}
		a := s.now
		if a.begun {
			if s.next == nil {
				s.next = newAsking[T]()
			}
			a = s.next
		}
		a.waiters++
		s.mu.Unlock()
		select {
		case <-a.turn:
			return s.run(ctx, a)
		case <-a.done:
			if a.ended && ctx.Err() == nil {
				continue
			}
			return a.got, a.err
		case <-ctx.Done():
			s.leave(a)
			var none T
			return none, ctx.Err()
		}
	}
}

func newAsking[T any]() *asking[T] {
	return &asking[T]{turn: make(chan struct{}, 1), done: make(chan struct{})}
}

func (s *shared[T]) run(ctx context.Context, a *asking[T]) (T, error) {
	runtime.Gosched() // those who are about to ask share the question
	s.mu.Lock()
	a.begun = true
	s.mu.Unlock()
	a.got, a.err = s.ask(ctx)
	a.ended = a.err != nil && (ctx.Err() != nil || errors.Is(a.err, context.DeadlineExceeded) || errors.Is(a.err, context.Canceled))
	s.mu.Lock()
	defer s.mu.Unlock()
	s.finishLocked(a)
	return a.got, a.err
}

// finishLocked ends a, which is asked now, and gives the turn to one of those who came meanwhile.
func (s *shared[T]) finishLocked(a *asking[T]) {
	close(a.done)
	s.now, s.next = s.next, nil
	if s.now != nil {
		s.now.turn <- struct{}{} // has room: it is given once
	}
}

// leave is for one who waits no longer.
func (s *shared[T]) leave(a *asking[T]) {
	s.mu.Lock()
	defer s.mu.Unlock()
	a.waiters--
	if a.waiters > 0 {
		return
	}
	switch a {
	case s.next:
		s.next = nil
	case s.now: // the last of those who could have asked, unless one does
		select {
		case <-a.turn:
			s.finishLocked(a)
		default:
		}
	}
}
