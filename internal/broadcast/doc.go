// SPDX-License-Identifier: MPL-2.0

// Package broadcast wakes every goroutine that waits for an event.
//
// A waiter takes the channel before it reads the state that the event changes,
// so that no event is lost between the read and the wait:
//
//	for {
//		changed := b.Wait()
//		if ready() {
//			return nil
//		}
//		select {
//		case <-changed:
//		case <-ctx.Done():
//			return ctx.Err()
//		}
//	}
//
// Events carry no data and may coalesce. The package starts no goroutine.
package broadcast
