// SPDX-License-Identifier: MPL-2.0

// Package testutil has helpers that the tests of all packages share.
//
//	testutil.Cluster(t) // skipped by go test -short
//	testutil.Eventually(t, 5*time.Second, func() bool { return srv.IsLeader() }, "srv1 leads")
//
// Eventually and Await evaluate a condition on the wall clock, at first every 5
// ms and later at most every 100 ms. They end the test at the timeout. A test of
// pure time runs in a Bubble of testing/synctest instead.
package testutil
