// SPDX-License-Identifier: MPL-2.0

package wanfed

import (
	"context"
	"errors"
	"time"
)

// errOvertaken is the cause with which a race cancels those that did not win.
var errOvertaken = errors.New("another one was faster")

// race runs try(0), try(1), ... until one succeeds: the next one is started stagger after the last start, or at once when
// one fails (RFC 8305 section 5, without its address sorting). The others are then cancelled, and what they still bring is
// discarded. It returns after all of them did. Without a winner, errs has an error for each that was started.
func race[T any](ctx context.Context, n int, stagger time.Duration,
	try func(ctx context.Context, i int) (T, error), discard func(T),
) (winner T, won bool, errs []error) {
	type result struct {
		i   int
		got T
		err error
	}
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	results := make(chan result, n)
	errs = make([]error, n)
	started, running := 0, 0
	timer := time.NewTimer(stagger)
	defer timer.Stop()
	start := func() {
		i := started
		started, running = started+1, running+1
		timer.Reset(stagger)
		go func() { // joined: the loops below receive running results
			got, err := try(ctx, i)
			results <- result{i, got, err}
		}()
	}
	if n > 0 {
		start()
	}
	for running > 0 && !won {
		select {
		case r := <-results:
			running--
			errs[r.i] = r.err
			if r.err == nil {
				winner, won = r.got, true
			} else if started < n && ctx.Err() == nil {
				start()
			}
		case <-timer.C:
			if started < n && ctx.Err() == nil {
				start()
			}
		}
	}
	cancel(errOvertaken)
	for ; running > 0; running-- {
		if r := <-results; r.err == nil {
			discard(r.got)
		}
	}
	return winner, won, errs[:started]
}
