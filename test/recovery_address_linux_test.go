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

// TestServerMoves gives a server of dc2 another LAN address, under the same name and with the same data, and starts it again:
// after a clean stop, and after a kill, when the others still have it alive at its old address. LAN pool, Raft, gateway
// routes and WAN pool must all follow.
func TestServerMoves(t *testing.T) {
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
				// The gateway knows a server by name, as it should: else nobody could tell it where a datacenter's only
				// server went.
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
				throughGateway(t, l, dc1, srv, wanfed.ProtoGRPC) // that very server
				writeNumbers(t, l, dc1.Servers[0], 1)
				awaitNumber(t, promptly, 1, dc2.Servers...)
				sameEverywhere(t, l)
			})
		}
	}
}
