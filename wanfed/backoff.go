// SPDX-License-Identifier: MPL-2.0

package wanfed

import "time"

// backoff doubles from min to max. The zero value with both set is ready.
type backoff struct {
	min, max time.Duration
	last     time.Duration
}

// next returns how long to wait now. spread, from 0 to 1, takes up to a quarter off, so that many do not come at once.
func (b *backoff) next(spread float64) time.Duration {
	b.last = min(max(2*b.last, b.min), b.max)
	return b.last - time.Duration(spread*float64(b.last)/4)
}

func (b *backoff) reset() { b.last = 0 }
