// SPDX-License-Identifier: MPL-2.0

// Package resourcetest tests implementations of resource.Backend against its
// contract. An implementation calls Run in its own tests.
//
//	func TestConformance(t *testing.T) {
//		resourcetest.Run(t, func(t *testing.T) resourcetest.Target {
//			s := mystore.New()
//			t.Cleanup(func() { s.Close() })
//			return resourcetest.Target{Backend: s, Snapshot: ..., Restart: ...}
//		})
//	}
//
// Each subtest calls open once and uses its own types, so open may return a new
// backend or one that other subtests also use. It registers cleanup functions
// with t.Cleanup. The backend must accept writes, for example as the leader of
// a Raft group or as a resource.ForwardingBackend. While a subtest runs,
// resource.ReapOnce must delete the owned resources of deleted resources.
// Subtests wait for events. A subtest that waits longer than a minute fails.
//
// A subtest ends its goroutines. Leadership, kill -9 and slow watches differ
// between backends, so the implementations test them.
package resourcetest
