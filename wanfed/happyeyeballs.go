// SPDX-License-Identifier: MPL-2.0

package wanfed

import (
	"context"
	"errors"
	"time"
)

// errLostRace is the cancellation cause of attempts that did not win.
var errLostRace = errors.New("another attempt was faster")

// happyEyeballs calls try(0), try(1), ... until one call succeeds (RFC 8305
// section 5). The next attempt starts at the first failure of a pending
// attempt, or after delay. If the timer of the delay fires late, the processor is
// busy, and busyDelay extends the delay: the pending attempt is probably slow for
// the same reason, and another one would add to the load. The first success
// cancels the other attempts, and their results are passed to discard.
// happyEyeballs returns after every attempt has returned. errs holds one error
// per started attempt.
func happyEyeballs[T any](ctx context.Context, n int, delay time.Duration,
	try func(ctx context.Context, i int) (T, error), discard func(T),
) (winner T, won bool, errs []error) {
	type result struct {
		i     int
		value T
		err   error
	}
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	results := make(chan result, n)
	errs = make([]error, n)
	started, running := 0, 0
	timer := time.NewTimer(delay)
	defer timer.Stop()
	var armed time.Time // start of the delay
	extended := false   // the delay
	start := func() {
		if started == n || ctx.Err() != nil {
			return
		}
		i := started
		started, running = started+1, running+1
		timer.Reset(delay)
		armed, extended = time.Now(), false
		go func() { // joined: the loop below receives one result of each attempt
			value, err := try(ctx, i)
			results <- result{i, value, err}
		}()
	}
	for start(); running > 0; {
		select {
		case r := <-results:
			running--
			errs[r.i] = r.err
			switch {
			case r.err != nil:
				start()
			case won:
				discard(r.value)
			default:
				winner, won = r.value, true
				cancel(errLostRace) // start has no effect from now on
			}
		case <-timer.C: // its value is the time at which the timer was due
			late := time.Since(armed) - delay
			if extension := busyDelay(late, maxStagger); extension > 0 && !extended {
				extended = true
				timer.Reset(extension)
				continue
			}
			start()
		}
	}
	return winner, won, errs[:started]
}
