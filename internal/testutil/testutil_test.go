// SPDX-License-Identifier: MPL-2.0

package testutil

import (
	"testing"
	"time"
)

func TestEventually_ReturnsOnceTrue(t *testing.T) {
	calls := 0
	Eventually(t, time.Minute, func() bool { calls++; return calls == 3 }, "three calls")
	if calls != 3 {
		t.Errorf("Eventually() called cond %d times, want 3", calls)
	}
}
