// SPDX-License-Identifier: MPL-2.0

package httpapi

import (
	"context"
	"errors"
	"math/rand/v2"
	"net/http"
	"time"

	"github.com/wanfed/wanfed/api"
	"github.com/wanfed/wanfed/resource"
	"github.com/wanfed/wanfed/server/limit"
)

const (
	// leaderHold is how long a request waits for the datacenter to have a leader, and leaderPause how often it looks.
	leaderHold  = 7 * time.Second
	leaderPause = 50 * time.Millisecond
	// freshWithin is how long it may take to learn what is fresh enough, or to write.
	freshWithin = 15 * time.Second
)

// consistency is how fresh the answer must be: Consul's clients expect to read what was written before, on any server, unless
// they say stale.
func (q query) consistency() (resource.Consistency, error) {
	stale, err := q.flag("stale")
	if err != nil {
		return 0, err
	}
	consistent, err := q.flag("consistent")
	switch {
	case err != nil:
		return 0, err
	case stale && consistent:
		return 0, badRequest{errors.New("cannot specify ?stale with ?consistent, conflicting semantics")}
	case stale:
		return resource.Eventual, nil
	}
	return resource.Strong, nil
}

// noLeader is Consul's text.
var noLeader = statusError{http.StatusInternalServerError, "No cluster leader"}

// held calls f, which begins nothing without a leader, until there is one, but not for long.
func held(ctx context.Context, f func(ctx context.Context) error) error {
	ctx, cancel := context.WithTimeout(ctx, freshWithin)
	defer cancel()
	deadline := time.Now().Add(leaderHold)
	for {
		err := f(ctx)
		if !errors.Is(err, resource.ErrNotLeader) {
			return err
		}
		if time.Now().After(deadline) {
			return noLeader
		}
		if err := limit.Pause(ctx, func() error {
			select {
			case <-time.After(leaderPause):
				return nil
			case <-ctx.Done():
				return ctx.Err()
			}
		}); err != nil {
			return err
		}
	}
}

// blocking answers a read: what read returns, with its index. If that is the index that q names it waits, until read returns
// something else than before, or q's wait is over. same says whether two answers are the same: what moves an index need not change
// an answer. wait blocks until the index is above after.
func blocking[T any](ctx context.Context, q query,
	read func(ctx context.Context, c resource.Consistency) (T, uint64, error),
	wait func(ctx context.Context, after uint64) error,
	same func(a, b T) bool,
) (got T, index uint64, err error) {
	c, err := q.consistency()
	if err != nil {
		return got, 0, err
	}
	fetch := func(c resource.Consistency) (v T, index uint64, err error) {
		if c == resource.Eventual { // needs no leader, and waits for nothing
			v, index, err = read(ctx, c)
			return v, max(index, 1), err
		}
		err = held(ctx, func(ctx context.Context) (err error) {
			v, index, err = read(ctx, c)
			return err
		})
		return v, max(index, 1), err // a client that is told 0 would not block, but ask again and again
	}
	got, index, err = fetch(c)
	if err != nil || !q.blocks() || index != q.index {
		return got, index, err
	}
	wctx, cancel := context.WithTimeout(ctx, q.wait+rand.N(api.MaxBlockTime(q.wait)-q.wait+1))
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
		got, index, err = fetch(resource.Eventual) // a wait that ended has seen it here
		if err != nil || !same(before, got) {
			return got, index, err
		}
	}
}
