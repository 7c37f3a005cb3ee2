// SPDX-License-Identifier: MPL-2.0

package resource

import "context"

type committedKey struct{}

// WithCommitted returns a context in which a Backend calls committed with the
// index of each commit that it has made. The goroutine of the commit calls it.
func WithCommitted(ctx context.Context, committed func(index uint64)) context.Context {
	return context.WithValue(ctx, committedKey{}, committed)
}

// Committed reports the index of a commit to the function of ctx, if ctx has one.
// Backends call it.
func Committed(ctx context.Context, index uint64) {
	if f, ok := ctx.Value(committedKey{}).(func(uint64)); ok {
		f(index)
	}
}
