// SPDX-License-Identifier: MPL-2.0

package test

import (
	"context"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/wanfed/wanfed/api"
	"github.com/wanfed/wanfed/catalog"
	"github.com/wanfed/wanfed/internal/testutil"
	"github.com/wanfed/wanfed/test/lab"
)

// settle limits how long it may take until a detected change of a gateway is
// visible in other datacenters. The limit holds on a busy machine. An idle
// machine takes tens of milliseconds, as the log of the test shows.
const settle = 5 * time.Second

// TestGatewayChanges adds, re-addresses, stops and kills gateways of dc2. Each
// change must become visible in dc1 and dc3.
func TestGatewayChanges(t *testing.T) {
	t.Parallel()
	overGateways(t, gatewayChanges, "dc2")
}

func gatewayChanges(t *testing.T, envoys lab.Envoys) {
	l := lab.New(t)
	l.Envoys = envoys
	dc1, dc2, dc3 := l.Add(1, 1), l.Add(1, 2), l.Add(1, 1)
	for _, dc := range []*lab.Datacenter{dc1, dc3} {
		dc.Start()
	}
	dc2.Servers[0].StartServer()
	dc2.Gateways[0].StartGateway()
	servers := []*lab.Node{dc1.Servers[0], dc2.Servers[0], dc3.Servers[0]}
	testutil.Await(t, 30*time.Second, "federation", func(ctx context.Context) error {
		for _, s := range servers {
			if err := federated(ctx, s, 3, "dc1", "dc2", "dc3"); err != nil {
				return err
			}
		}
		return nil
	})
	others := []*lab.Node{dc1.Servers[0], dc3.Servers[0]}
	gw1, gw2 := dc2.Gateways[0], dc2.Gateways[1]

	// shown waits until dc1 and dc3 list a gateway of dc2 with the given
	// address and health. If wan is "", it waits until they do not list the
	// gateway.
	shown := func(what, node, wan string, healthy bool, limit time.Duration) {
		t.Helper()
		took := testutil.Await(t, limit, what, func(ctx context.Context) error {
			for _, s := range others {
				got, ok, err := gatewayOf(ctx, s, "dc2", node)
				if err != nil {
					return err
				}
				if ok != (wan != "") {
					return fmt.Errorf("%s lists %s: %v, want %v", s.NS, node, ok, wan != "")
				}
				if ok && (got.Service.TaggedAddresses[catalog.TagWAN].Address != wan || got.Healthy() != healthy) {
					return fmt.Errorf("%s lists %s at %v, healthy %v; want %s, healthy %v",
						s.NS, node, got.Service.TaggedAddresses[catalog.TagWAN], got.Healthy(), wan, healthy)
				}
			}
			return nil
		})
		t.Logf("%s: visible in dc1 and dc3 after %v", what, took)
	}

	gw2.StartGateway()
	shown("gateway added", "gw2", gw2.WAN, true, settle)

	gw2.Stop()
	shown("gateway stopped cleanly", "gw2", "", false, settle)

	gw2.ReAddress("198.18.2.77")
	gw2.StartGateway()
	shown("gateway started at another address", "gw2", "198.18.2.77", true, settle)

	gw2.Process.Kill()
	shown("gateway killed, heartbeat time included", "gw2", "198.18.2.77", false, catalog.HeartbeatTTL+settle)
	testutil.Await(t, settle, "conditions", func(ctx context.Context) error {
		for _, s := range others {
			got, err := conditionsOf(ctx, s, "dc2")
			if err != nil {
				return err
			}
			const want = "map[CertificatesValid:STATE_TRUE GatewaysHealthy:STATE_FALSE Reachable:STATE_TRUE Replicated:STATE_TRUE]"
			if fmt.Sprint(got) != want {
				return fmt.Errorf("conditions of dc2 in %s = %v, want %s", s.NS, got, want)
			}
		}
		return nil
	})
	gw2.StartGateway()
	shown("killed gateway restarted", "gw2", "198.18.2.77", true, settle)

	// The only other gateway of dc2 is killed. The remaining one must carry all
	// traffic.
	gw1.Process.Kill()
	sameResponseBothWays(t, dc1.Servers[0], dc2.Servers[0])
}

// conditionsOf returns the states of the conditions of a datacenter, as server s
// has observed them.
func conditionsOf(ctx context.Context, s *lab.Node, dc string) (map[string]string, error) {
	var r struct {
		Status map[string]struct {
			Conditions []struct{ Type, State string }
		}
	}
	if err := s.Get(ctx, "/api/federation/v1/Datacenter/"+dc, &r); err != nil {
		return nil, err
	}
	states := map[string]string{}
	for _, c := range r.Status["datacenter-conditions"].Conditions {
		states[c.Type] = c.State
	}
	return states, nil
}

// gatewayOf returns a gateway from the federation state of a datacenter, as
// stored by server s. It returns false if the state does not list the gateway.
func gatewayOf(ctx context.Context, s *lab.Node, dc, node string) (g api.MeshGateway, ok bool, err error) {
	var a api.FederationStateResponse
	if err := s.Get(ctx, "/v1/internal/federation-state/"+dc, &a); err != nil {
		return g, false, err
	}
	i := slices.IndexFunc(a.State.MeshGateways, func(g api.MeshGateway) bool { return g.Node.Node == node })
	if i < 0 {
		return g, false, nil
	}
	return a.State.MeshGateways[i], true, nil
}
