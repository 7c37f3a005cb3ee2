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

// comeback bounds the time until a path that works again is used: it is probed
// at the latest 25 s after the last failed probe.
const comeback = 40 * time.Second

// TestMeshGatewayMode_FallsBack has two datacenters whose servers have their
// own WAN interface. dc1 (mode remote) bypasses its gateway and does not need
// it. When its WAN interface is down, it falls back to the gateway, and later
// returns to the direct path. dc2 (mode local) does the reverse.
func TestMeshGatewayMode_FallsBack(t *testing.T) {
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
	awaitPath(t, remote, dc2, toDC2, promptly)
	awaitPath(t, local, dc1, ownOf(dc1), promptly) // both gateways have this address: the subnets are equal
	for _, s := range []struct {
		from  *lab.Node
		to    *lab.Datacenter
		other string // the unused path
	}{{remote, dc2, ownOf(dc1)}, {local, dc1, toDC1}} {
		testutil.Await(t, comeback, s.from.WANName()+" has probed "+s.other, func(ctx context.Context) error {
			h, err := pathTo(ctx, s.from, s.to, s.other)
			if err != nil || h.Health != "ok" || h.RTT == nil || h.Used || len(h.Sources) == 0 {
				return fmt.Errorf("path is %+v, %w, want a probed and unused one", h, err)
			}
			return nil
		})
	}

	dc1.Gateways[0].Kill() // the only gateway of dc1
	for range 20 {
		if err := servesRequests(t.Context(), remote, dc2); err != nil {
			t.Errorf("request with local gateways down, mode remote = %v, want nil", err)
		}
	}
	dc1.Gateways[0].StartGateway()
	awaitWhole(t, l, comeback, "local gateway back")
	setWAN := func(s *lab.Node, state string) {
		t.Helper()
		if out, err := exec.Command("ip", "-n", s.NS, "link", "set", "wan", state).CombinedOutput(); err != nil {
			t.Fatalf("ip link set wan %s = %v: %s", state, err, out)
		}
	}
	setWAN(remote, "down")
	testutil.Await(t, comeback, "requests without a direct path, mode remote", func(ctx context.Context) error {
		return servesRequests(ctx, remote, dc2)
	})
	awaitPath(t, remote, dc2, ownOf(dc1), comeback)
	setWAN(remote, "up")
	t.Logf("back on the direct path after %v", awaitPath(t, remote, dc2, toDC2, comeback))

	dc2.Gateways[0].Kill() // the only gateway of dc2; no request can enter now
	testutil.Await(t, promptly, "requests with local gateways down, mode local", func(ctx context.Context) error {
		return servesRequests(ctx, local, dc1)
	})
	awaitPath(t, local, dc1, toDC1, comeback)
	dc2.Gateways[0].StartGateway()
	t.Logf("back on the local gateway after %v", awaitPath(t, local, dc1, ownOf(dc2), comeback))
	setWAN(local, "down")
	for range 20 {
		if err := servesRequests(t.Context(), local, dc1); err != nil {
			t.Errorf("request without a direct path, mode local = %v, want nil", err)
		}
	}
	if out, err := local.CLI("status", "--output", "wide"); err != nil ||
		!strings.Contains(out, "Mesh gateway mode local") || !strings.Contains(out, "heartbeat") {
		t.Errorf("wanfed status = %v, %s; want the mode and the sources of paths", err, out)
	}
}

// awaitPath waits until the gossip of a server to dc uses the path with the
// address addr.
func awaitPath(t *testing.T, s *lab.Node, dc *lab.Datacenter, addr string, limit time.Duration) time.Duration {
	t.Helper()
	return testutil.Await(t, limit, fmt.Sprintf("%s reaches %s through %s", s.WANName(), dc.Name, addr),
		func(ctx context.Context) error {
			h, err := pathTo(ctx, s, dc, addr)
			if err == nil && !h.Used {
				err = fmt.Errorf("path is not used: %+v", h)
			}
			return err
		})
}

// pathTo returns the path to dc with the address addr, from the status of s.
func pathTo(ctx context.Context, s *lab.Node, dc *lab.Datacenter, addr string) (api.PathStatus, error) {
	var st api.Status
	if err := poll(ctx, s, api.StatusPath, &st); err != nil {
		return api.PathStatus{}, err
	}
	for _, d := range st.Datacenters {
		if i := slices.IndexFunc(d.Paths, func(h api.PathStatus) bool {
			return h.Address == addr
		}); d.Name == dc.Name && i >= 0 {
			return d.Paths[i], nil
		}
	}
	return api.PathStatus{}, fmt.Errorf("no path %s to %s: %+v", addr, dc.Name, st.Datacenters)
}
