// SPDX-License-Identifier: MPL-2.0

// Package broadcast wakes all goroutines that wait for an event.
//
// A goroutine calls Wait before it reads the state that the event changes.
// Otherwise it would miss an event between the read and the call of Wait:
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
// Events carry no data. Several events may wake a goroutine once.
package broadcast
