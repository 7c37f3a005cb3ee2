// SPDX-License-Identifier: MPL-2.0

package proxycfg

import (
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/wanfed/wanfed/api/pb"
	"github.com/wanfed/wanfed/gateway"
)

func server(node, addr string) *pb.SnapshotServer {
	return &pb.SnapshotServer{Node: node, Address: addr}
}

func datacenter(name string, gateways ...string) *pb.SnapshotDatacenter {
	return &pb.SnapshotDatacenter{Name: name, Gateways: gateways}
}

var (
	localRoutes = []gateway.Route{
		{Match: "server.dc1.wanfed", To: []string{"10.0.0.1:8300", "10.0.0.2:8300"}},
		{Match: "srv1.server.dc1.wanfed", To: []string{"10.0.0.1:8300"}},
		{Match: "srv2.server.dc1.wanfed", To: []string{"10.0.0.2:8300"}},
	}
	toDC2   = []string{"gw2.example:8443", "198.51.100.2:8443"}
	servers = []*pb.SnapshotServer{server("srv1", "10.0.0.1:8300"), server("srv2", "10.0.0.2:8300")}
)

var tablesTests = []struct {
	name     string
	snap     *pb.GatewaySnapshot
	lan, wan []gateway.Route
	faults   []string // a part of each error
}{
	{name: "empty", snap: &pb.GatewaySnapshot{Datacenter: "dc1", Domain: "wanfed"}},
	{
		name: "servers and datacenters; the order of gateways is kept",
		snap: &pb.GatewaySnapshot{Servers: servers, Datacenters: []*pb.SnapshotDatacenter{
			datacenter("dc2", toDC2...), datacenter("dc3"),
		}},
		lan: append([]gateway.Route{
			{Match: "*.server.dc2.wanfed", To: toDC2, Ordered: true},
			{Match: "server.dc2.wanfed", To: toDC2, Ordered: true},
		}, localRoutes...),
		wan: localRoutes,
	},
	{
		name: "the local datacenter among the others leads to no gateway",
		snap: &pb.GatewaySnapshot{Servers: servers, Datacenters: []*pb.SnapshotDatacenter{
			datacenter("dc1", "10.0.0.9:8443"),
		}},
		lan: localRoutes, wan: localRoutes,
	},
	{
		name: "faults of servers and of datacenters",
		snap: &pb.GatewaySnapshot{
			Servers: []*pb.SnapshotServer{servers[0], servers[1], server("*", "10.0.0.3:1"),
				server("a.b", "10.0.0.3:1"), server("srv3", "10.0.0.3"),
				server("srv1", "10.0.0.7:8300")},
			Datacenters: []*pb.SnapshotDatacenter{
				datacenter("dc2", "nonsense", toDC2[0], "0.0.0.0:1", toDC2[1], toDC2[0]),
				datacenter("*", "10.0.0.4:1"), datacenter("dc4", "10.0.0.5"),
			},
		},
		lan: append([]gateway.Route{
			{Match: "*.server.dc2.wanfed", To: toDC2, Ordered: true},
			{Match: "server.dc2.wanfed", To: toDC2, Ordered: true},
		}, localRoutes...),
		wan: localRoutes,
		faults: []string{`server "*"`, `server "a.b"`, `server "srv3": address "10.0.0.3" has no port`,
			`duplicate name "srv1.server.dc1.wanfed"`,
			`gateway of datacenter dc2: address "nonsense" has no port`,
			`gateway of datacenter dc2: address "0.0.0.0:1"`,
			`datacenter "*"`, `gateway of datacenter dc4: address "10.0.0.5" has no port`},
	},
	{
		name: "two servers at one address",
		snap: &pb.GatewaySnapshot{Servers: []*pb.SnapshotServer{server("a", "10.0.0.1:1"), server("b", "10.0.0.1:1")}},
		lan: []gateway.Route{{Match: "a.server.dc1.wanfed", To: []string{"10.0.0.1:1"}},
			{Match: "b.server.dc1.wanfed", To: []string{"10.0.0.1:1"}},
			{Match: "server.dc1.wanfed", To: []string{"10.0.0.1:1"}}},
		wan: []gateway.Route{{Match: "a.server.dc1.wanfed", To: []string{"10.0.0.1:1"}},
			{Match: "b.server.dc1.wanfed", To: []string{"10.0.0.1:1"}},
			{Match: "server.dc1.wanfed", To: []string{"10.0.0.1:1"}}},
	},
	{
		name:   "names too long",
		snap:   &pb.GatewaySnapshot{Domain: strings.Repeat("long.", 49) + "x", Servers: servers[:1]},
		faults: []string{"a name has"},
	},
}

// snapshotOf returns the snapshot for a message, and the faults of the message.
func snapshotOf(m *pb.GatewaySnapshot) (*Snapshot, []error) {
	servers, datacenters, faults := parse(m)
	r := Registration{Name: "gw1", LAN: "127.0.0.1:8444", WAN: "gw1.example:8443"}
	return build(m.Datacenter, m.Domain, r, servers, datacenters), faults
}

// tables returns the tables for a message. Without a complete snapshot, they are
// empty.
func tables(t *testing.T, m *pb.GatewaySnapshot, options UpstreamOptions) (lan, wan *gateway.Table, faults []error) {
	t.Helper()
	snap, faults := snapshotOf(m)
	if snap == nil {
		return &gateway.Table{}, &gateway.Table{}, faults
	}
	lan, wan, err := Tables(snap, options)
	if err != nil {
		t.Fatalf("Tables() = %v, want nil", err)
	}
	return lan, wan, faults
}

func TestTables(t *testing.T) {
	for _, tt := range tablesTests {
		t.Run(tt.name, func(t *testing.T) {
			tt.snap.Datacenter = "dc1"
			if tt.snap.Domain == "" {
				tt.snap.Domain = "wanfed"
			}
			lan, wan, faults := tables(t, tt.snap, UpstreamOptions{})
			if d := cmp.Diff(sorted(tt.lan), lan.Routes(), cmpopts.EquateEmpty()); d != "" {
				t.Errorf("LAN routes (-want +got):\n%s", d)
			}
			if d := cmp.Diff(sorted(tt.wan), wan.Routes(), cmpopts.EquateEmpty()); d != "" {
				t.Errorf("WAN routes (-want +got):\n%s", d)
			}
			if len(faults) != len(tt.faults) {
				t.Fatalf("faults = %v, want %d", faults, len(tt.faults))
			}
			for i, want := range tt.faults {
				if !strings.Contains(faults[i].Error(), want) {
					t.Errorf("fault %d = %v, want %s", i, faults[i], want)
				}
			}
		})
	}
}

// sorted returns routes in the order of Table.Routes.
func sorted(r []gateway.Route) []gateway.Route {
	return slices.SortedFunc(slices.Values(append([]gateway.Route{}, r...)), func(a, b gateway.Route) int {
		return strings.Compare(a.Match, b.Match)
	})
}

// On both listeners, the servers of this datacenter that accept a PROXY header
// receive one. The gateways of other datacenters do not.
func TestTables_ProxyTo(t *testing.T) {
	snap := &pb.GatewaySnapshot{Datacenter: "dc1", Domain: "wanfed",
		Servers: []*pb.SnapshotServer{server("srv1", "10.0.0.1:8300"), server("srv2", "10.0.0.2:8300")},
		Datacenters: []*pb.SnapshotDatacenter{datacenter("dc2", "198.51.100.2:8443"),
			datacenter("dc3", "198.51.100.3:8443")}}
	for _, proxyTo := range [][]string{nil, {"10.0.0.1:8300", "198.51.100.2:8443"}} {
		lan, wan, faults := tables(t, snap, UpstreamOptions{ProxyTo: proxyTo})
		if len(faults) > 0 || lan.Len() != 7 {
			t.Fatalf("Tables() = %d LAN routes, faults %v; want 7 and none", lan.Len(), faults)
		}
		for _, table := range []*gateway.Table{lan, wan} {
			for _, r := range table.Routes() {
				var want []string
				if strings.HasSuffix(r.Match, "server.dc1.wanfed") && slices.Contains(r.To, "10.0.0.1:8300") {
					want = proxyTo[:min(1, len(proxyTo))]
				}
				if r.ProxyProtocol || !slices.Equal(r.ProxyTo, want) {
					t.Errorf("Tables() with ProxyTo %v has route %+v, want ProxyTo %v", proxyTo, r, want)
				}
			}
		}
	}
}

// Only the routes to servers of this datacenter require protocols. Gateways of
// other datacenters check the clients of their servers.
func TestTables_Protocols(t *testing.T) {
	snap := &pb.GatewaySnapshot{Datacenter: "dc1", Domain: "wanfed",
		Servers:     []*pb.SnapshotServer{server("srv1", "10.0.0.1:8300")},
		Datacenters: []*pb.SnapshotDatacenter{datacenter("dc2", "198.51.100.2:8443")}}
	lan, wan, faults := tables(t, snap, UpstreamOptions{Protocols: []string{"wanfed/gossip/1"}})
	if len(faults) > 0 {
		t.Fatalf("Tables() has faults %v, want none", faults)
	}
	for name, want := range map[string]int{"server.dc1.wanfed": 1, "srv1.server.dc1.wanfed": 1, "server.dc2.wanfed": 0,
		"srv1.server.dc2.wanfed": 0} {
		if r, ok := lan.Lookup(name); !ok || len(r.Protocols) != want {
			t.Errorf("LAN route %s = %+v, want %d protocols", name, r, want)
		}
		if r, ok := wan.Lookup(name); ok != (want > 0) || len(r.Protocols) != want {
			t.Errorf("WAN route %s = %+v, want %d protocols", name, r, want)
		}
	}
}
