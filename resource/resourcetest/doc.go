// SPDX-License-Identifier: MPL-2.0

// Package resourcetest tests implementations of resource.Backend against its
// contract. An implementation calls Run in its own tests.
//
//	func TestConformance(t *testing.T) {
//		resourcetest.Run(t, func(t *testing.T) resourcetest.Target {
//			s := memory.New()
//			t.Cleanup(func() { s.Close() })
//			return resourcetest.Target{Backend: s, Snapshot: ..., Restart: ...}
//		})
//	}
//
// Each subtest calls open once and uses its own types, so open may return a new
// backend or one that other subtests also use. It registers cleanup functions with
// t.Cleanup. The backend must accept writes, as the leader of a Raft group does,
// or a resource.ForwardingBackend. The owned resources of deleted ones must be
// reaped: see resource.Reap. Subtests wait for events and not for time. One that
// waits longer than a minute fails.
//
// A subtest ends its goroutines. Leadership, kill -9 and slow watches differ
// between backends, so the implementations test them.
package resourcetest
