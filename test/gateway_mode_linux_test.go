// SPDX-License-Identifier: MPL-2.0

package test

import (
	"context"
	"fmt"
	"os/exec"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/wanfed/wanfed/api"
	"github.com/wanfed/wanfed/internal/testutil"
	"github.com/wanfed/wanfed/test/lab"
)

// comeback bounds how long a hop that works again may stay unused: a probe
// comes 25 s after the last failed one at the latest.
const comeback = 40 * time.Second

// TestMeshGatewayModes has two datacenters whose servers have a leg in the WAN
// of their own. dc1 passes its own gateway by, and does not miss it; when its
// leg is cut it falls back on the gateway, and moves away from it again. dc2
// goes the other way round.
func TestMeshGatewayModes(t *testing.T) {
	t.Parallel()
	l := lab.New(t)
	dc1, dc2 := l.Add(1, 1), l.Add(1, 1)
	remote, local := dc1.Servers[0], dc2.Servers[0]
	for i, s := range []*lab.Node{remote, local} {
		l.Net.Plug(s.NS, "wan", fmt.Sprintf("198.18.%d.200/16", i+1), l.WAN)
	}
	remote.StartServer("--mesh-gateway-mode", "remote")
	local.StartServer("--mesh-gateway-mode", "local")
	dc1.Gateways[0].StartGateway()
	dc2.Gateways[0].StartGateway()
	awaitWhole(t, l, promptly, "start")
	toDC2, toDC1 := dc2.Gateways[0].WANAddr(), dc1.Gateways[0].WANAddr()
	ownOf := func(dc *lab.Datacenter) string { return dc.Gateways[0].LANAddr() }
	awaitHop(t, remote, dc2, toDC2, promptly)
	awaitHop(t, local, dc1, ownOf(dc1), promptly) // each has the same address: the subnets are equal
	for _, s := range []struct {
		from  *lab.Node
		to    *lab.Datacenter
		other string // the hop that nothing uses
	}{{remote, dc2, ownOf(dc1)}, {local, dc1, toDC1}} {
		testutil.Await(t, comeback, s.from.WANName()+" has probed "+s.other, func(ctx context.Context) error {
			h, err := hopOf(ctx, s.from, s.to, s.other)
			if err != nil || h.Health != "ok" || h.RTT == nil || h.Used || len(h.Sources) == 0 {
				return fmt.Errorf("%+v, %w", h, err)
			}
			return nil
		})
	}

	dc1.Gateways[0].Kill() // all of dc1's own
	for range 20 {
		if err := servesRequests(t.Context(), remote, dc2); err != nil {
			t.Errorf("own gateways down, remote mode: %v", err)
		}
	}
	dc1.Gateways[0].StartGateway()
	awaitWhole(t, l, comeback, "own gateway back")
	leg := func(s *lab.Node, state string) {
		t.Helper()
		if out, err := exec.Command("ip", "-n", s.NS, "link", "set", "wan", state).CombinedOutput(); err != nil {
			t.Fatalf("%v: %s", err, out)
		}
	}
	leg(remote, "down")
	testutil.Await(t, comeback, "no way around the own gateway, remote mode", func(ctx context.Context) error { return servesRequests(ctx, remote, dc2) })
	awaitHop(t, remote, dc2, ownOf(dc1), comeback)
	leg(remote, "up")
	t.Logf("away from the own gateway after %v", awaitHop(t, remote, dc2, toDC2, comeback))

	dc2.Gateways[0].Kill() // all of dc2's own; nothing gets in there now
	testutil.Await(t, promptly, "own gateways down, local mode", func(ctx context.Context) error { return servesRequests(ctx, local, dc1) })
	awaitHop(t, local, dc1, toDC1, comeback)
	dc2.Gateways[0].StartGateway()
	t.Logf("back on the own gateway after %v", awaitHop(t, local, dc1, ownOf(dc2), comeback))
	leg(local, "down")
	for range 20 {
		if err := servesRequests(t.Context(), local, dc1); err != nil {
			t.Errorf("no way around the own gateway, local mode: %v", err)
		}
	}
	if out, err := local.CLI("status", "--detailed"); err != nil || !strings.Contains(out, "Mesh gateway mode local") || !strings.Contains(out, "heartbeat") {
		t.Errorf("%v: %s", err, out)
	}
}

// awaitHop waits until a server's gossip to dc goes over a hop.
func awaitHop(t *testing.T, s *lab.Node, dc *lab.Datacenter, addr string, limit time.Duration) time.Duration {
	t.Helper()
	return testutil.Await(t, limit, fmt.Sprintf("%s goes to %s over %s", s.WANName(), dc.Name, addr), func(ctx context.Context) error {
		h, err := hopOf(ctx, s, dc, addr)
		if err == nil && !h.Used {
			err = fmt.Errorf("it does not: %+v", h)
		}
		return err
	})
}

// hopOf is what a server says of one hop to dc.
func hopOf(ctx context.Context, s *lab.Node, dc *lab.Datacenter, addr string) (api.HopStatus, error) {
	var st api.Status
	if err := poll(ctx, s, api.StatusPath, &st); err != nil {
		return api.HopStatus{}, err
	}
	for _, d := range st.Datacenters {
		if i := slices.IndexFunc(d.Hops, func(h api.HopStatus) bool { return h.Address == addr }); d.Name == dc.Name && i >= 0 {
			return d.Hops[i], nil
		}
	}
	return api.HopStatus{}, fmt.Errorf("no hop %s to %s: %+v", addr, dc.Name, st.Datacenters)
}
