// SPDX-License-Identifier: MPL-2.0

package httpapi

import (
	"context"
	"errors"
	"math/rand/v2"
	"net/http"
	"time"

	"github.com/wanfed/wanfed/api"
	"github.com/wanfed/wanfed/internal/backoff"
	"github.com/wanfed/wanfed/resource"
	"github.com/wanfed/wanfed/server/limit"
)

const (
	leaderTimeout    = 7 * time.Second       // of a request while the datacenter has no leader
	leaderRetry      = 50 * time.Millisecond // between the attempts of a request
	operationTimeout = 15 * time.Second      // of a write, and of a read without its wait
)

// errNoLeader has Consul's text.
var errNoLeader = statusError{http.StatusInternalServerError, "No cluster leader"}

// untilLeader retries f while f fails with resource.ErrNotLeader, up to
// leaderTimeout. A call of f that fails with this error must have no effect.
func untilLeader(ctx context.Context, f func(ctx context.Context) error) error {
	ctx, cancel := context.WithTimeout(ctx, operationTimeout)
	defer cancel()
	deadline := time.Now().Add(leaderTimeout)
	for {
		err := f(ctx)
		if !errors.Is(err, resource.ErrNotLeader) {
			return err
		}
		if time.Now().After(deadline) {
			return errNoLeader
		}
		if err := limit.Pause(ctx, func() error {
			backoff.Sleep(ctx, leaderRetry, nil)
			return ctx.Err()
		}); err != nil {
			return err
		}
	}
}

// withWait returns a context that ends after the wait of q and its jitter.
func (q query) withWait(ctx context.Context) (context.Context, context.CancelFunc) {
	return context.WithTimeout(ctx, q.wait+rand.N(api.MaxBlockTime(q.wait)-q.wait+1))
}

// blocking returns the result of read with its index. If the index equals the
// index of q, blocking waits until read returns another result, or until the
// wait of q ends. wait blocks until the index is above after. same reports
// whether two results are equal, because the index may grow without a change of
// the result.
func blocking[T any](ctx context.Context, q query,
	read func(ctx context.Context, c resource.Consistency) (T, uint64, error),
	wait func(ctx context.Context, after uint64) error,
	same func(a, b T) bool,
) (got T, index uint64, err error) {
	c, err := q.consistency()
	if err != nil {
		return got, 0, err
	}
	return blockingAt(ctx, q, c, read, wait, same)
}

// blockingAt is blocking with consistency c.
func blockingAt[T any](ctx context.Context, q query, c resource.Consistency,
	read func(ctx context.Context, c resource.Consistency) (T, uint64, error),
	wait func(ctx context.Context, after uint64) error,
	same func(a, b T) bool,
) (got T, index uint64, err error) {
	fetch := func(c resource.Consistency) (v T, index uint64, err error) {
		if c == resource.Eventual { // needs no leader
			v, index, err = read(ctx, c)
		} else {
			err = untilLeader(ctx, func(ctx context.Context) (err error) {
				v, index, err = read(ctx, c)
				return err
			})
		}
		return v, max(index, 1), err // with index 0, a client would poll
	}
	got, index, err = fetch(c)
	if err != nil || !q.blocks() || index != q.index {
		return got, index, err
	}
	wctx, cancel := q.withWait(ctx)
	defer cancel()
	for {
		err := limit.Pause(ctx, func() error { return wait(wctx, index) })
		switch {
		case ctx.Err() != nil:
			return got, index, ctx.Err()
		case wctx.Err() != nil:
			return got, index, nil
		case err != nil:
			return got, index, err
		}
		before := got
		got, index, err = fetch(resource.Eventual) // the local store has the change
		if err != nil || !same(before, got) {
			return got, index, err
		}
	}
}
