// SPDX-License-Identifier: MPL-2.0

package httpapi

import (
	"context"
	"sync"
)

// Turns bounds how many queries make their answers, or have a large one that was not sent, at a time. A query that waits, for a change or
// for a leader, has no turn meanwhile. Its capacity is the bound; nil is no bound.
type Turns chan struct{}

// Begin waits for a turn, until ctx ends.
func (t Turns) Begin(ctx context.Context) (*Turn, error) {
	turn := &Turn{all: t}
	return turn, turn.take(ctx)
}

// TryBegin returns nil if there is none now.
func (t Turns) TryBegin() *Turn {
	if t == nil {
		return &Turn{}
	}
	select {
	case t <- struct{}{}:
		return &Turn{all: t, held: true}
	default:
		return nil
	}
}

// Turn is that of one query.
type Turn struct {
	all Turns

	mu          sync.Mutex
	held, ended bool
}

// End gives the turn back. It may be called again, at any time.
func (t *Turn) End() {
	t.mu.Lock()
	t.ended = true
	t.mu.Unlock()
	t.give()
}

func (t *Turn) give() {
	t.mu.Lock()
	held := t.held
	t.held = false
	t.mu.Unlock()
	if held {
		<-t.all
	}
}

// take waits for the turn. When it was ended meanwhile nobody wants the answer.
func (t *Turn) take(ctx context.Context) error {
	if t.all == nil {
		return ctx.Err()
	}
	select {
	case t.all <- struct{}{}:
	case <-ctx.Done():
		return ctx.Err()
	}
	t.mu.Lock()
	t.held = !t.ended
	late := t.ended
	t.mu.Unlock()
	if late {
		<-t.all
	}
	return nil
}

type turnKey struct{}

// WithTurn returns a context for Serve of a query that has turn.
func WithTurn(ctx context.Context, turn *Turn) context.Context {
	return context.WithValue(ctx, turnKey{}, turn)
}

// resting calls wait without the turn of the query, if it has one. An error of ctx is returned if wait has none.
func resting(ctx context.Context, wait func() error) error {
	turn, _ := ctx.Value(turnKey{}).(*Turn)
	if turn == nil || turn.all == nil {
		return wait()
	}
	turn.give()
	err := wait()
	if again := turn.take(ctx); err == nil {
		err = again
	}
	return err
}
