// SPDX-License-Identifier: MPL-2.0

// Package backoff computes the pauses between the attempts of a retry loop.
//
//	b := backoff.Backoff{Min: 100 * time.Millisecond, Max: 3 * time.Second}
//	for ctx.Err() == nil {
//		if err := attempt(); err == nil {
//			b.Reset()
//			continue
//		}
//		backoff.Sleep(ctx, b.Next(), nil)
//	}
//
// Pauses double from Min to Max. Jitter spreads the retries of many clients
// that lost one peer at the same moment.
package backoff
