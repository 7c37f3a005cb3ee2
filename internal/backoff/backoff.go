// SPDX-License-Identifier: MPL-2.0

package backoff

import (
	"context"
	"math/rand/v2"
	"time"
)

// Backoff computes pauses that double from Min to Max. It is ready for use when
// both fields are set. It is not safe for concurrent use.
type Backoff struct {
	Min time.Duration // first pause; must be positive
	Max time.Duration // longest pause before jitter; at least Min

	last time.Duration // previous pause without jitter; 0 after Reset
}

// Next returns the next pause: twice the previous pause, at most Max, plus
// jitter.
func (b *Backoff) Next() time.Duration {
	b.last = min(max(2*b.last, b.Min), b.Max)
	return Jitter(b.last)
}

// Reset makes Next return Min again. Call it after a success.
func (b *Backoff) Reset() { b.last = 0 }

// Delay returns the pause after the given number of consecutive failures, for
// callers that count failures. The pause is lowest after one failure and
// doubles with each further failure, up to highest. Delay adds jitter to the
// pause. It returns 0 if failures is 0.
func Delay(failures int, lowest, highest time.Duration) time.Duration {
	if failures <= 0 {
		return 0
	}
	d := lowest
	for ; failures > 1 && d < highest; failures-- {
		d *= 2
	}
	return Jitter(min(d, highest))
}

// Jitter returns d plus a random time of up to a quarter of d.
func Jitter(d time.Duration) time.Duration {
	if d < 4 {
		return d
	}
	return d + rand.N(d/4)
}

// Sleep blocks for d, until ctx ends, or until it receives from wake, whichever
// comes first. woken reports whether wake ended the sleep. wake may be nil.
func Sleep(ctx context.Context, d time.Duration, wake <-chan struct{}) (woken bool) {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-ctx.Done():
	case <-wake:
		return true
	}
	return false
}
