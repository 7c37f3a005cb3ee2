// SPDX-License-Identifier: MPL-2.0

package federation

import (
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/wanfed/wanfed/api/pb"
	"github.com/wanfed/wanfed/catalog"
	"github.com/wanfed/wanfed/wanfed"
)

func meshGateway(dc, node, lan, wan, status string) *pb.MeshGateway {
	return &pb.MeshGateway{
		Node: &pb.Node{Node: node, Datacenter: dc},
		Service: &pb.Service{Node: node, Id: node, Kind: catalog.KindMeshGateway, TaggedAddresses: map[string]*pb.Address{
			catalog.TagLAN: {Address: lan, Port: 8443}, catalog.TagWAN: {Address: wan, Port: 8443},
		}},
		Checks: []*pb.Check{{Node: node, CheckId: "service:" + node, ServiceId: node, Status: status}},
	}
}

func TestComputeOfASecondary(t *testing.T) {
	cfg := AddressBookConfig{DC: "dc2", PrimaryDC: "dc1", Domain: "wanfed", PrimaryGateways: []string{"gw.dc1.example:8443", "198.51.100.1:8443"}}
	dc1 := &pb.FederationState{Datacenter: "dc1", MeshGateways: []*pb.MeshGateway{
		meshGateway("dc1", "gw-a", "10.0.0.1", "198.51.100.1", catalog.StatusCritical),
		meshGateway("dc1", "gw-b", "10.0.0.2", "198.51.100.2", catalog.StatusPassing),
	}}
	// The same LAN addresses as dc2's own gateways: only names may tell datacenters apart.
	dc3 := &pb.FederationState{Datacenter: "dc3", MeshGateways: []*pb.MeshGateway{meshGateway("dc3", "gw-a", "10.0.0.9", "198.51.100.3", catalog.StatusWarning)}}
	own := []*pb.MeshGateway{meshGateway("dc2", "gw-a", "10.0.0.9", "203.0.113.1", catalog.StatusPassing)}
	viaOwn := wanfed.Hop{Addr: "10.0.0.9:8443", Via: ViaOwn}

	tests := []struct {
		name  string
		facts facts
		hops  map[string][]wanfed.Hop
		snap  []*pb.SnapshotDatacenter
	}{
		{
			name:  "at the first start only the configured addresses are known",
			facts: facts{},
			hops:  map[string][]wanfed.Hop{"dc1": {{Addr: "gw.dc1.example:8443", Via: ViaConfigured}, {Addr: "198.51.100.1:8443", Via: ViaConfigured}}},
			snap:  []*pb.SnapshotDatacenter{{Name: "dc1", Gateways: []string{"gw.dc1.example:8443", "198.51.100.1:8443"}}},
		},
		{
			name:  "an own gateway is the first hop to the primary before any state is known",
			facts: facts{own: own},
			hops:  map[string][]wanfed.Hop{"dc1": {viaOwn, {Addr: "gw.dc1.example:8443", Via: ViaConfigured}, {Addr: "198.51.100.1:8443", Via: ViaConfigured}}},
			snap:  []*pb.SnapshotDatacenter{{Name: "dc1", Gateways: []string{"gw.dc1.example:8443", "198.51.100.1:8443"}}},
		},
		{
			name:  "healthy gateways come first, critical ones stay, configured addresses join, the own datacenter is left out",
			facts: facts{own: own, states: []*pb.FederationState{dc1, {Datacenter: "dc2", MeshGateways: own}, dc3}, servers: map[string]string{"srv1": "10.0.0.5:8300"}},
			hops: map[string][]wanfed.Hop{
				"dc1": {viaOwn, {Addr: "198.51.100.2:8443", Via: ViaRemote}, {Addr: "198.51.100.1:8443", Via: ViaConfigured}, {Addr: "gw.dc1.example:8443", Via: ViaConfigured}},
				"dc3": {viaOwn, {Addr: "198.51.100.3:8443", Via: ViaRemote}},
			},
			snap: []*pb.SnapshotDatacenter{
				{Name: "dc1", Gateways: []string{"198.51.100.2:8443", "198.51.100.1:8443", "gw.dc1.example:8443"}},
				{Name: "dc3", Gateways: []string{"198.51.100.3:8443"}},
			},
		},
		{
			name: "an address of earlier runs is the last hop, and makes no datacenter known that nobody names",
			facts: facts{states: []*pb.FederationState{dc3}, old: remembered{
				"dc3": {"198.51.100.30:8443": time.Unix(1, 0), "198.51.100.31:8443": time.Unix(2, 0), "198.51.100.3:8443": time.Unix(3, 0)},
				"dc8": {"198.51.100.8:8443": time.Unix(1, 0)},
			}},
			hops: map[string][]wanfed.Hop{
				"dc1": {{Addr: "gw.dc1.example:8443", Via: ViaConfigured}, {Addr: "198.51.100.1:8443", Via: ViaConfigured}},
				"dc3": {{Addr: "198.51.100.3:8443", Via: ViaRemote}, {Addr: "198.51.100.31:8443", Via: ViaRemembered}, {Addr: "198.51.100.30:8443", Via: ViaRemembered}},
			},
			snap: []*pb.SnapshotDatacenter{
				{Name: "dc1", Gateways: []string{"gw.dc1.example:8443", "198.51.100.1:8443"}},
				{Name: "dc3", Gateways: []string{"198.51.100.3:8443", "198.51.100.31:8443", "198.51.100.30:8443"}},
			},
		},
		{
			name: "what servers tell in the WAN pool comes before the record, which stays",
			facts: facts{own: own, states: []*pb.FederationState{dc3},
				hints: map[string][]string{"dc3": {"198.51.100.33:8443"}, "dc5": {"198.51.100.5:8443"}}},
			hops: map[string][]wanfed.Hop{
				"dc1": {viaOwn, {Addr: "gw.dc1.example:8443", Via: ViaConfigured}, {Addr: "198.51.100.1:8443", Via: ViaConfigured}},
				"dc3": {viaOwn, {Addr: "198.51.100.33:8443", Via: ViaRemote}, {Addr: "198.51.100.3:8443", Via: ViaRemote}},
				"dc5": {viaOwn, {Addr: "198.51.100.5:8443", Via: ViaRemote}},
			},
			snap: []*pb.SnapshotDatacenter{
				{Name: "dc1", Gateways: []string{"gw.dc1.example:8443", "198.51.100.1:8443"}},
				{Name: "dc3", Gateways: []string{"198.51.100.33:8443", "198.51.100.3:8443"}},
				{Name: "dc5", Gateways: []string{"198.51.100.5:8443"}},
			},
		},
		{
			name:  "a datacenter without gateways is no hop, even with own gateways",
			facts: facts{own: own, states: []*pb.FederationState{{Datacenter: "dc4"}}},
			hops:  map[string][]wanfed.Hop{"dc1": {viaOwn, {Addr: "gw.dc1.example:8443", Via: ViaConfigured}, {Addr: "198.51.100.1:8443", Via: ViaConfigured}}},
			snap:  []*pb.SnapshotDatacenter{{Name: "dc1", Gateways: []string{"gw.dc1.example:8443", "198.51.100.1:8443"}}},
		},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			routes, snap, _ := compute(cfg, tt.facts)
			if d := cmp.Diff(tt.hops, routes.Hops); d != "" {
				t.Errorf("hops (-want +got):\n%s", d)
			}
			if len(snap.Datacenters) != len(tt.snap) {
				t.Fatalf("snapshot has datacenters %v, want %v", snap.Datacenters, tt.snap)
			}
			for i, want := range tt.snap {
				if got := snap.Datacenters[i]; got.Name != want.Name || !cmp.Equal(got.Gateways, want.Gateways) {
					t.Errorf("snapshot datacenter %d is %v, want %v", i, got, want)
				}
			}
			if len(snap.Servers) != len(tt.facts.servers) {
				t.Errorf("snapshot has servers %v, want %v", snap.Servers, tt.facts.servers)
			}
		})
	}
}

func TestComputeOfThePrimaryHasNoConfiguredHop(t *testing.T) {
	routes, snap, _ := compute(AddressBookConfig{DC: "dc1", PrimaryDC: "dc1", Domain: "wanfed"}, facts{})
	if len(routes.Hops) != 0 || len(snap.Datacenters) != 0 {
		t.Errorf("a lone primary knows hops %v and datacenters %v", routes.Hops, snap.Datacenters)
	}
}
