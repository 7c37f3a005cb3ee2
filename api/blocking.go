// SPDX-License-Identifier: MPL-2.0

package api

import "time"

// Bounds of a blocking query.
const (
	// DefaultWait is how long a query with an index but no wait blocks at most.
	DefaultWait = 5 * time.Minute
	// MaxWait is the longest wait that counts; a longer one is cut to it.
	MaxWait = 10 * time.Minute
)

// Wait is the wait that counts for the one asked for: 0 means DefaultWait.
func EffectiveWait(asked time.Duration) time.Duration {
	if asked <= 0 {
		return DefaultWait
	}
	return min(asked, MaxWait)
}

// MaxBlockTime is the longest time that a server blocks when asked to wait: it adds up to a sixteenth at random, so that
// queries made together do not come back together.
func MaxBlockTime(wait time.Duration) time.Duration { return wait + wait/16 }
