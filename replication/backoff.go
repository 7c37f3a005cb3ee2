// SPDX-License-Identifier: MPL-2.0

package replication

import (
	"log/slog"
	"math/rand/v2"
	"time"
)

// Back-off between the beginnings of two attempts. An attempt itself waits for a connection to the primary, and so begins its
// work when there is one: the back-off is for errors that come from there.
const (
	minBackoff = 100 * time.Millisecond
	maxBackoff = 3 * time.Second
)

// backoff doubles from minBackoff to maxBackoff and adds up to a quarter of jitter.
type backoff struct{ n int }

func (b *backoff) reset() { b.n = 0 }

// next is how long to wait after an attempt that took a time.
func (b *backoff) next(took time.Duration) time.Duration {
	d := min(minBackoff<<min(b.n, 10), maxBackoff)
	b.n++
	return max(0, d+rand.N(d/4)-took)
}

// level is that of an error: the first in a row is news.
func level(failing bool) slog.Level {
	if failing {
		return slog.LevelDebug
	}
	return slog.LevelWarn
}
