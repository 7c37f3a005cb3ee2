// SPDX-License-Identifier: MPL-2.0

package lab

import (
	"context"
	"testing"
	"time"
)

// Eventually calls check every few milliseconds until it returns nil, or fails the test after limit. It returns how long it took.
func Eventually(t testing.TB, limit time.Duration, what string, check func(ctx context.Context) error) time.Duration {
	t.Helper()
	start := time.Now()
	ctx, cancel := context.WithTimeout(context.Background(), limit)
	defer cancel()
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	var last error
	for {
		err := check(ctx)
		if err == nil {
			return time.Since(start)
		}
		if last == nil || ctx.Err() == nil { // else it says no more than that the time is over
			last = err
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			t.Fatalf("%s: not within %v: %v", what, limit, last)
		}
	}
}
