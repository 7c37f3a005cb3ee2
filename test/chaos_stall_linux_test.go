// SPDX-License-Identifier: MPL-2.0

package test

import (
	"fmt"
	"testing"
	"time"

	"github.com/wanfed/wanfed/test/lab"
)

const (
	// maxStall is the longest stall of this machine in a valid run of the long
	// form. With a longer stall the test measures the machine: a path with a
	// round trip of 80 ms is suspected after 250 ms of silence.
	maxStall = 100 * time.Millisecond
	// maxRuns bounds the runs of a case until one had no stall.
	maxRuns = 3
)

// withoutStalls runs a case until the machine did not stall during a run. run
// returns the violations. A run with a stall is void and logged as such. The
// test fails if all runs are void.
func withoutStalls(t *testing.T, run func(t *testing.T) (faults []string)) {
	t.Helper()
	for n := range maxRuns {
		void := true
		t.Run(fmt.Sprint("run ", n+1), func(t *testing.T) {
			stalls, began := lab.WatchStalls(t), time.Now()
			faults := run(t)
			worst := stalls.Worst(began)
			if void = worst.Took > maxStall; void {
				t.Logf("VOID: worst stall of this machine %v; violations ignored: %q", worst, faults)
				return
			}
			t.Logf("worst stall of this machine: %v", worst)
			for _, fault := range faults {
				t.Error(fault)
			}
		})
		if !void || t.Failed() {
			return
		}
	}
	t.Errorf("all %d runs are void: this machine stalled for more than %v in each", maxRuns, maxStall)
}
