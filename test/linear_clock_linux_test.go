// SPDX-License-Identifier: MPL-2.0

package test

import (
	"context"
	"math/rand/v2"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// clockJump sets this machine's clock by up to a minute forth or back, for a
// while. It is the whole machine's: only the long form does it, which has the
// machine for itself. Where that is not allowed it says so and does nothing.
func clockJump(ctx context.Context, t *testing.T, rng *rand.Rand) {
	t.Helper()
	by := time.Duration(rng.Int64N(int64(2*time.Minute))) - time.Minute
	if err := shiftClock(by); err != nil {
		t.Logf("the clock stays as it is: %v", err)
		return
	}
	waitSome(ctx, rng, time.Second, 2*time.Second)
	if err := shiftClock(-by); err != nil {
		t.Errorf("the clock is off by %v: %v", by, err)
	}
}

func shiftClock(by time.Duration) error {
	var now unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_REALTIME, &now); err != nil {
		return err
	}
	to := unix.NsecToTimespec(now.Nano() + by.Nanoseconds())
	return unix.ClockSettime(unix.CLOCK_REALTIME, &to)
}
