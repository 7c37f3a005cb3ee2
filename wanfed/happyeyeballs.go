// SPDX-License-Identifier: MPL-2.0

package wanfed

import (
	"context"
	"errors"
	"time"
)

// errLostRace is the cancellation cause of attempts that did not win.
var errLostRace = errors.New("another attempt was faster")

// happyEyeballs calls try(0), try(1), ... until one succeeds (RFC 8305 section
// 5). An attempt starts delay after the previous one started, or at once when
// an attempt fails. After the first success the other attempts are cancelled
// and their results are passed to discard. happyEyeballs returns after every
// attempt has returned. If every attempt fails, errs holds one error per
// started attempt.
func happyEyeballs[T any](ctx context.Context, n int, delay time.Duration,
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
	timer := time.NewTimer(delay)
	defer timer.Stop()
	start := func() {
		if started == n || ctx.Err() != nil {
			return
		}
		i := started
		started, running = started+1, running+1
		timer.Reset(delay)
		go func() { // joined: the loops below receive a result from each
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
			} else {
				start()
			}
		case <-timer.C:
			start()
		}
	}
	cancel(errLostRace)
	for ; running > 0; running-- {
		if r := <-results; r.err == nil {
			discard(r.got)
		}
	}
	return winner, won, errs[:started]
}
