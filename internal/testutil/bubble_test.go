// SPDX-License-Identifier: MPL-2.0

package testutil

import (
	"sync"
	"testing"
	"time"
)

// TestBubble_Timers ends the process in most runs with the race detector if
// two processors run timers of a bubble (golang/go#78156).
func TestBubble_Timers(t *testing.T) {
	for range 5 {
		Bubble(t, func(t *testing.T) {
			var wg sync.WaitGroup
			for range 8 {
				wg.Go(func() {
					for range 2000 {
						expired := time.NewTimer(0)
						select {
						case <-expired.C:
						default:
						}
					}
				})
			}
			wg.Wait()
		})
	}
}
