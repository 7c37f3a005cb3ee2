// SPDX-License-Identifier: MPL-2.0

package test

import (
	"fmt"
	"testing"
	"time"

	"github.com/wanfed/wanfed/test/lab"
)

const (
	// maxStall is how long this machine may stand still while a case of the
	// long form runs. Longer, and what is measured is the machine: a way of 80
	// ms is held to be dead when nothing has come over it for 250.
	maxStall = 100 * time.Millisecond
	// maxRuns bounds how often a case is run until the machine did not stand
	// still.
	maxRuns = 3
)

// undisturbed runs a case, which returns what was not as it must be, until the
// machine did not stand still meanwhile. A run in which it did is void,
// whatever it showed, and the log says so; when all were void, the test fails.
func undisturbed(t *testing.T, run func(t *testing.T) (faults []string)) {
	t.Helper()
	for n := range maxRuns {
		void := true
		t.Run(fmt.Sprint("run ", n+1), func(t *testing.T) {
			stalls, began := lab.WatchStalls(t), time.Now()
			faults := run(t)
			worst := stalls.Worst(began)
			if void = worst.Took > maxStall; void {
				t.Logf("VOID: this machine stood still for %v; without that, these would be faults: %q", worst, faults)
				return
			}
			t.Logf("this machine stood still for %v at most", worst)
			for _, fault := range faults {
				t.Error(fault)
			}
		})
		if !void || t.Failed() {
			return
		}
	}
	t.Errorf("void: in each of %d runs this machine stood still for more than %v", maxRuns, maxStall)
}
