// SPDX-License-Identifier: MPL-2.0

package testutil

import (
	"testing"
	"time"
)

// pollInterval is the pause between two evaluations of a condition.
const pollInterval = 5 * time.Millisecond

// Eventually evaluates cond until it returns true. It fails the test at once
// when timeout has passed: format and args name the condition that was not met.
func Eventually(t testing.TB, timeout time.Duration, cond func() bool, format string, args ...any) {
	t.Helper()
	deadline := time.Now().Add(timeout)
	for !cond() {
		if time.Now().After(deadline) {
			t.Fatalf("after %v: want "+format, append([]any{timeout}, args...)...)
		}
		time.Sleep(pollInterval)
	}
}

// Cluster marks a test that runs on the wall clock or builds a cluster. Such a
// test depends on how the machine schedules processes. "go test -short" skips
// it, as "make test" does; "make test-cluster" runs it, one test at a time.
func Cluster(t testing.TB) {
	t.Helper()
	if testing.Short() {
		t.Skip("cluster test: run it with make test-cluster")
	}
}
