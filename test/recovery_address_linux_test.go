// SPDX-License-Identifier: MPL-2.0

package test

import (
	"fmt"
	"net"
	"strconv"
	"testing"

	"github.com/wanfed/wanfed/test/lab"
	"github.com/wanfed/wanfed/wanfed"
)

// TestServer_NewAddress restarts a server of dc2 at another LAN address, with
// the same name and data: after a clean stop, and after a kill, when the others
// still see it alive at the old address. LAN pool, Raft, gateway routes and WAN
// pool must all use the new address.
func TestServer_NewAddress(t *testing.T) {
	t.Parallel()
	for _, servers := range []int{1, 3} {
		for _, killed := range []bool{false, true} {
			t.Run(fmt.Sprintf("%d servers, killed %v", servers, killed), func(t *testing.T) {
				t.Parallel()
				l := lab.New(t)
				dc1, dc2 := l.Add(1, 1), l.Add(servers, 1)
				dc1.Start()
				for _, s := range dc2.Servers {
					s.StartServer()
				}
				// The gateway is configured with the server's host name. With
				// an IP address it could not find the only server of its
				// datacenter again.
				gw := dc2.Gateways[0]
				l.Net.Hosts(gw.NS, map[string]string{"srv1.example": dc2.Servers[0].LAN})
				gw.StartGateway("--server", net.JoinHostPort("srv1.example", strconv.Itoa(lab.ServerPort)))
				awaitWhole(t, l, 2*promptly, "start")
				srv := dc2.Servers[0]
				if servers > 1 {
					srv = leaderOf(t, dc2)
				}
				if killed {
					srv.Kill()
				} else {
					srv.Stop()
				}
				srv.ReAddressLAN("10.10.0.77")
				l.Net.Hosts(gw.NS, map[string]string{"srv1.example": dc2.Servers[0].LAN})
				srv.StartServer()
				awaitWhole(t, l, 2*promptly, "server moved")
				throughGateway(t, l, dc1, srv, wanfed.ProtoGRPC) // to this server, not to any
				writeNumbers(t, l, dc1.Servers[0], 1)
				awaitNumber(t, promptly, 1, dc2.Servers...)
				sameEverywhere(t, l)
			})
		}
	}
}
