// SPDX-License-Identifier: MPL-2.0

package checks

import (
	"cmp"

	"github.com/wanfed/wanfed/api/pb"
	"github.com/wanfed/wanfed/catalog"
)

// thresholds decides when equal results in a row become the status of a check.
type thresholds struct {
	probe               *pb.Probe
	successes, failures uint32 // in a row
}

// add adds a result. It returns the new status, and false if the status stays as
// it is.
func (t *thresholds) add(r result) (result, bool) {
	if r.status != catalog.StatusCritical {
		t.successes, t.failures = t.successes+1, 0
		return r, t.successes >= t.probe.GetSuccessBeforePassing()
	}
	t.successes, t.failures = 0, t.failures+1
	toCritical := t.probe.GetFailuresBeforeCritical()
	toWarning := cmp.Or(t.probe.GetFailuresBeforeWarning(), toCritical)
	switch {
	case t.failures >= toCritical:
		return r, true
	case t.failures >= toWarning:
		r.status = catalog.StatusWarning
		return r, true
	}
	return r, false
}
