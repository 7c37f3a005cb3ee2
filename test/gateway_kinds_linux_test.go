// SPDX-License-Identifier: MPL-2.0

package test

import (
	"os"
	"strings"
	"testing"

	"github.com/wanfed/wanfed/internal/testutil"
	"github.com/wanfed/wanfed/test/lab"
)

// overGateways runs a test with native gateways, and with each other selection
// of Envoys. WANFED_GATEWAYS replaces the selections by a list, such as
// native,dc1,dc2,all,mixed.
func overGateways(t *testing.T, f func(t *testing.T, e lab.Envoys), others ...lab.Envoys) {
	t.Helper()
	selections := append([]lab.Envoys{lab.NoEnvoy}, others...)
	if list := os.Getenv("WANFED_GATEWAYS"); list != "" {
		selections = nil
		for s := range strings.SplitSeq(list, ",") {
			selections = append(selections, lab.Envoys(s))
		}
	}
	for _, e := range selections {
		t.Run("Envoys "+string(e), func(t *testing.T) {
			if e != lab.NoEnvoy {
				testutil.Envoy(t)
			}
			f(t, e)
		})
	}
}
