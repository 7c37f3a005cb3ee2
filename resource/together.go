// SPDX-License-Identifier: MPL-2.0

package resource

import "context"

type togetherKey struct{}

// together is what reads that were all asked before the first of them begins have in common.
type together struct {
	turn  chan struct{} // size 1: whoever has put something in asks the leader, or looks at fresh
	fresh bool          // what is applied here is fresh enough for all of them
}

// Together returns a context for reads all of which were asked before the first of them begins: once a Routed store has learned from
// the leader what one of them must see, the others that have to be as fresh see it too, and do not ask again.
func Together(ctx context.Context) context.Context {
	return context.WithValue(ctx, togetherKey{}, &together{turn: make(chan struct{}, 1)})
}

// once calls f, which returns when what is applied here is fresh enough, unless it was called for another of them, and did.
func (t *together) once(ctx context.Context, f func(ctx context.Context) error) error {
	select {
	case t.turn <- struct{}{}:
	case <-ctx.Done():
		return ctx.Err()
	}
	defer func() { <-t.turn }()
	if t.fresh {
		return nil
	}
	err := f(ctx)
	t.fresh = err == nil
	return err
}
