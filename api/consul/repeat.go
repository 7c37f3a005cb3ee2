// SPDX-License-Identifier: MPL-2.0

package consul

import (
	"context"
	"errors"
	"iter"
	"time"

	"github.com/wanfed/wanfed/api"
	"github.com/wanfed/wanfed/internal/backoff"
)

const (
	// Wait is the longest time that a query should block, to which an agent adds
	// up to a 16th. A response confirms the data, so this is also the greatest
	// age of current data. An agent whose index decreased while no query was
	// pending, as in a short restart, blocks queries with the old index for this
	// time.
	Wait = 10 * time.Second
	// Interval is the minimum time between two requests of a query, and the
	// maximum time by which it delays a change.
	Interval = 50 * time.Millisecond
	// minBackoff and maxBackoff bound the pause after a failed request.
	minBackoff = 100 * time.Millisecond
	maxBackoff = 10 * time.Second
)

// Repeat returns the results of a blocking query, which it repeats until ctx
// ends or the caller stops. Each request blocks for at most wait. After an
// error, and when the index decreases, as after a restored snapshot, the next
// request does not block, so the query reads everything again. Repeat pauses
// after an error, with jittered backoff, and for at least RetryAfter.
func Repeat[T any](
	ctx context.Context, wait time.Duration, read func(context.Context, api.QueryOptions) (T, api.QueryMeta, error),
) iter.Seq2[T, error] {
	return func(yield func(T, error) bool) {
		retry := backoff.Backoff{Min: minBackoff, Max: maxBackoff}
		q := api.QueryOptions{Wait: wait}
		for ctx.Err() == nil {
			next := time.Now().Add(Interval)
			result, meta, err := read(ctx, q)
			if ctx.Err() != nil || !yield(result, err) {
				return
			}
			index := q.Index
			q.Index, q.Hash = 0, ""
			var pause time.Duration
			switch {
			case err != nil:
				pause = max(retry.Next(), RetryAfter(err))
			case meta.Index < index:
				pause = retry.Next()
			default:
				retry.Reset()
				// With index 0, a query would not block. Consul's clients use 1 then.
				q.Index, q.Hash = max(meta.Index, 1), meta.Hash
			}
			backoff.Sleep(ctx, max(pause, time.Until(next)), nil)
		}
	}
}

// RetryAfter returns the time for which the agent accepts no request after err.
func RetryAfter(err error) time.Duration {
	if e, ok := errors.AsType[*api.StatusError](err); ok {
		return e.RetryAfter
	}
	return 0
}
