// SPDX-License-Identifier: MPL-2.0

package test

import (
	"context"
	"fmt"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/wanfed/wanfed/test/lab"
)

// TestConnectionsOfServers counts the TCP connections of servers to another
// datacenter while they gossip, replicate and serve requests. There are one or
// two, a packet link and a session, for a whole second, or for ten minutes in
// the long form. On a busy machine a server may suspect a connection and open
// another; then the time starts again.
func TestConnectionsOfServers(t *testing.T) {
	t.Parallel()
	l := lab.New(t)
	dc1, dc2 := l.Add(1, 1), l.Add(3, 1)
	dc1.Start()
	dc2.Start()
	awaitWhole(t, l, promptly, "start")
	servers := l.Running()
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	limit := time.Now().Add(longer(20*time.Minute, 2*time.Minute))
	most := map[string]int{}
	for begin, ticks := time.Now(), 0; time.Since(begin) < longer(10*time.Minute, time.Second); <-tick.C {
		if ticks++; ticks%10 == 1 && ticks < 500 { // idle after 50 requests
			for s, dc := range map[*lab.Node]*lab.Datacenter{lab.One(dc1): dc2, lab.One(dc2): dc1} {
				ctx, cancel := context.WithTimeout(t.Context(), pollTimeout)
				if err := servesRequests(ctx, s, dc); err != nil {
					t.Error(err)
				}
				cancel()
			}
		}
		for _, s := range servers {
			n := connectionsTo(t, s, s.DC().Gateways[0].LANAddr())
			if most[s.WANName()] = max(most[s.WANName()], n); n > 2 || n < 1 {
				begin = time.Now()
			}
		}
		if time.Now().After(limit) {
			t.Fatalf("connections to the other datacenter at most %v, want 1 or 2 for %v", most,
				longer(10*time.Minute, time.Second))
		}
	}
	t.Logf("most connections to the other datacenter: %v", most)
}

// connectionsTo counts the established TCP connections of s to addr, an ip:port
// of version 4.
func connectionsTo(t *testing.T, s *lab.Node, addr string) (n int) {
	t.Helper()
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/net/tcp", s.Process.Pid()))
	if err != nil {
		t.Fatal(err)
	}
	var ip [4]byte
	var port int
	if _, err := fmt.Sscanf(strings.ReplaceAll(addr, ":", "."), "%d.%d.%d.%d.%d", &ip[0], &ip[1], &ip[2], &ip[3],
		&port); err != nil {
		t.Fatal(err)
	}
	// little endian; 01: established
	want := fmt.Sprintf(" %02X%02X%02X%02X:%04X 01 ", ip[3], ip[2], ip[1], ip[0], port)
	return strings.Count(string(b), want)
}
