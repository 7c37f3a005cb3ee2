// SPDX-License-Identifier: MPL-2.0

// Package resourcetest is the conformance suite of resource.Backend: every promise of that interface that a test can see,
// as subtests. An implementation passes it by calling Run from its tests.
//
// Each subtest calls open once and works with types of its own, so that open may return a new backend or one that other
// subtests use too; open registers what closes it with t.Cleanup. The backend must take writes: a Raft store's leader does,
// and with resource.Routed a follower. It must also have somebody who reaps: see resource.Reap. Subtests wait for events, never
// for time; one that waits in vain fails after a minute.
//
// The goroutines of a subtest end before it does. What no backend can show alone (leadership, kill -9, a watch that is too
// slow) is left to the tests of the implementations.
//
//	func TestConformance(t *testing.T) {
//		resourcetest.Run(t, func(t *testing.T) resourcetest.Target {
//			s := memory.New()
//			t.Cleanup(func() { s.Close() })
//			return resourcetest.Target{Backend: s, Snapshot: ..., Restart: ...}
//		})
//	}
package resourcetest
