// SPDX-License-Identifier: MPL-2.0

package test

import (
	"fmt"
	"testing"

	"github.com/wanfed/wanfed/test/lab"
)

// TestSecondaryReAddressed changes the WAN address of dc2's only gateway: while
// all are connected, while the primary is cut off, and while dc2 is down.
func TestSecondaryReAddressed(t *testing.T) {
	t.Parallel()
	overGateways(t, secondaryReAddressed)
}

func secondaryReAddressed(t *testing.T, envoys lab.Envoys) {
	for _, tc := range []struct {
		while  string
		third  bool // dc3 exists
		always bool
	}{
		{"connected", true, true},
		{"connected", false, false},
		{"primary cut off", true, true},
		{"primary cut off", false, false},
		{"down", true, false},
		{"down", false, true},
	} {
		t.Run(fmt.Sprintf("%s, third %v", tc.while, tc.third), func(t *testing.T) {
			t.Parallel()
			if !tc.always {
				onlyChaos(t)
			}
			l := lab.New(t)
			l.Envoys = envoys
			dc1, dc2 := l.Add(1, 1), l.Add(1, 1)
			if tc.third {
				l.Add(1, 1)
			}
			for _, dc := range l.Datacenters() {
				dc.Start()
			}
			awaitWhole(t, l, promptly, "start")
			gw := dc2.Gateways[0]
			switch tc.while {
			case "primary cut off":
				dc1.Gateways[0].Stop()
			case "down":
				dc2.Servers[0].Stop()
			}
			gw.Stop()
			gw.ReAddress("198.18.2.71")
			switch tc.while {
			case "primary cut off":
				gw.StartGateway()
				dc1.Gateways[0].StartGateway()
			case "down":
				dc2.Servers[0].StartServer()
				gw.StartGateway()
			default:
				gw.StartGateway()
			}
			awaitWhole(t, l, promptly, "gateway moved while "+tc.while)
		})
	}
}
