// SPDX-License-Identifier: MPL-2.0

package federation

import (
	"log/slog"
	"path/filepath"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/wanfed/wanfed/api/pb"
	"github.com/wanfed/wanfed/catalog"
	"github.com/wanfed/wanfed/gossip"
	mem "github.com/wanfed/wanfed/resource/memory"
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

func statesOf(all ...*pb.FederationState) (out []*told) {
	for _, s := range all {
		out = append(out, toldBy(s))
	}
	return out
}

func TestComputeOfASecondary(t *testing.T) {
	cfg := AddressBookUpdaterConfig{DC: "dc2", PrimaryDC: "dc1", Domain: "wanfed", PrimaryGateways: []string{"gw.dc1.example:8443", "198.51.100.1:8443"}}
	dc1 := &pb.FederationState{Datacenter: "dc1", MeshGateways: []*pb.MeshGateway{
		meshGateway("dc1", "gw-a", "10.0.0.1", "198.51.100.1", catalog.StatusCritical),
		meshGateway("dc1", "gw-b", "10.0.0.2", "198.51.100.2", catalog.StatusPassing),
	}}
	// The same LAN addresses as dc2's own gateways: only names may tell datacenters apart.
	dc3 := &pb.FederationState{Datacenter: "dc3", MeshGateways: []*pb.MeshGateway{meshGateway("dc3", "gw-a", "10.0.0.9", "198.51.100.3", catalog.StatusWarning)}}
	own := []*pb.MeshGateway{meshGateway("dc2", "gw-a", "10.0.0.9", "203.0.113.1", catalog.StatusPassing)}
	viaOwn := wanfed.Path{Addr: "10.0.0.9:8443", Via: ViaOwn, Local: true}

	tests := []struct {
		name  string
		facts facts
		hops  map[string][]wanfed.Path
		snap  []*pb.SnapshotDatacenter
	}{
		{
			name:  "at the first start only the configured addresses are known",
			facts: facts{},
			hops:  map[string][]wanfed.Path{"dc1": {{Addr: "gw.dc1.example:8443", Via: ViaConfigured}, {Addr: "198.51.100.1:8443", Via: ViaConfigured}}},
			snap:  []*pb.SnapshotDatacenter{{Name: "dc1", Gateways: []string{"gw.dc1.example:8443", "198.51.100.1:8443"}}},
		},
		{
			name:  "an own gateway is the first hop to the primary before any state is known",
			facts: facts{own: own},
			hops:  map[string][]wanfed.Path{"dc1": {viaOwn, {Addr: "gw.dc1.example:8443", Via: ViaConfigured}, {Addr: "198.51.100.1:8443", Via: ViaConfigured}}},
			snap:  []*pb.SnapshotDatacenter{{Name: "dc1", Gateways: []string{"gw.dc1.example:8443", "198.51.100.1:8443"}}},
		},
		{
			name:  "healthy gateways come first, critical ones stay, configured addresses join, the own datacenter is left out",
			facts: facts{own: own, states: statesOf(dc1, &pb.FederationState{Datacenter: "dc2", MeshGateways: own}, dc3), servers: map[string]string{"srv1": "10.0.0.5:8300"}},
			hops: map[string][]wanfed.Path{
				"dc1": {viaOwn, {Addr: "198.51.100.2:8443", Via: ViaRemote}, {Addr: "198.51.100.1:8443", Via: ViaConfigured, Rank: wanfed.RankCritical}, {Addr: "gw.dc1.example:8443", Via: ViaConfigured}},
				"dc3": {viaOwn, {Addr: "198.51.100.3:8443", Via: ViaRemote}},
			},
			snap: []*pb.SnapshotDatacenter{
				{Name: "dc1", Gateways: []string{"198.51.100.2:8443", "198.51.100.1:8443", "gw.dc1.example:8443"}},
				{Name: "dc3", Gateways: []string{"198.51.100.3:8443"}},
			},
		},
		{
			name: "an address of earlier runs is the last hop, and makes no datacenter known that nobody names",
			facts: facts{states: statesOf(dc3), old: remembered{
				"dc3": {{addr: "198.51.100.30:8443", Known: time.Unix(1, 0)}, {addr: "198.51.100.31:8443", Worked: time.Unix(2, 0)}, {addr: "198.51.100.3:8443", Known: time.Unix(3, 0)}},
				"dc8": {{addr: "198.51.100.8:8443", Known: time.Unix(1, 0)}},
			}},
			hops: map[string][]wanfed.Path{
				"dc1": {{Addr: "gw.dc1.example:8443", Via: ViaConfigured}, {Addr: "198.51.100.1:8443", Via: ViaConfigured}},
				"dc3": {{Addr: "198.51.100.3:8443", Via: ViaRemote}, {Addr: "198.51.100.31:8443", Via: ViaRemembered, Rank: wanfed.RankCached}, {Addr: "198.51.100.30:8443", Via: ViaRemembered, Rank: wanfed.RankCached}},
			},
			snap: []*pb.SnapshotDatacenter{
				{Name: "dc1", Gateways: []string{"gw.dc1.example:8443", "198.51.100.1:8443"}},
				{Name: "dc3", Gateways: []string{"198.51.100.3:8443", "198.51.100.31:8443", "198.51.100.30:8443"}},
			},
		},
		{
			name: "what servers tell in the WAN pool comes before the record, which stays",
			facts: facts{own: own, states: statesOf(dc3),
				hints: map[string][]string{"dc3": {"198.51.100.33:8443"}, "dc5": {"198.51.100.5:8443"}}},
			hops: map[string][]wanfed.Path{
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
			facts: facts{own: own, states: statesOf(&pb.FederationState{Datacenter: "dc4"})},
			hops:  map[string][]wanfed.Path{"dc1": {viaOwn, {Addr: "gw.dc1.example:8443", Via: ViaConfigured}, {Addr: "198.51.100.1:8443", Via: ViaConfigured}}},
			snap:  []*pb.SnapshotDatacenter{{Name: "dc1", Gateways: []string{"gw.dc1.example:8443", "198.51.100.1:8443"}}},
		},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			c := compute(cfg, tt.facts, nil)
			routes, snap := c.routes(tt.facts.servers), c.snapshot(cfg, tt.facts.servers)
			if d := cmp.Diff(tt.hops, routes.Paths); d != "" {
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
	cfg := AddressBookUpdaterConfig{DC: "dc1", PrimaryDC: "dc1", Domain: "wanfed"}
	if c := compute(cfg, facts{}, nil); len(c.routes(nil).Paths) != 0 || len(c.snapshot(cfg, nil).Datacenters) != 0 {
		t.Errorf("a lone primary knows %v", c.entries)
	}
}

func TestOrigins(t *testing.T) {
	cfg := AddressBookUpdaterConfig{DC: "dc2", PrimaryDC: "dc1", Domain: "wanfed", PrimaryGateways: []string{"gw.dc1.example:8443"}}
	written := time.Unix(500, 0).UTC()
	c := compute(cfg, facts{
		own: []*pb.MeshGateway{
			meshGateway("dc2", "gw-a", "10.0.0.9", "203.0.113.1", catalog.StatusCritical),
			meshGateway("dc2", "gw-b", "10.0.0.8", "203.0.113.2", catalog.StatusPassing),
		},
		states: statesOf(&pb.FederationState{Datacenter: "dc1", UpdatedAt: timestamppb.New(written), MeshGateways: []*pb.MeshGateway{
			meshGateway("dc1", "gw-a", "10.0.0.1", "198.51.100.1", catalog.StatusCritical), // gossip knows better
			meshGateway("dc1", "gw-b", "10.0.0.2", "198.51.100.2", catalog.StatusPassing),
			meshGateway("dc1", "gw-c", "10.0.0.3", "10.0.0.9", catalog.StatusPassing), // an own gateway has the same address
		}}),
		hints: map[string][]string{"dc1": {"198.51.100.1:8443"}},
		old: remembered{"dc1": {
			{addr: "198.51.100.2:8443", Known: time.Unix(400, 0)}, {addr: "198.51.100.7:8443", Known: time.Unix(300, 0)}, {addr: "gw.dc1.example:8443", Known: time.Unix(600, 0)},
		}},
	}, nil)
	want := map[string]Origin{
		"10.0.0.8:8443":       {Sources: []string{SourceHeartbeat}},
		"10.0.0.9:8443":       {Sources: []string{SourceHeartbeat}},
		"198.51.100.1:8443":   {Sources: []string{SourceGossip, SourceState}},
		"198.51.100.2:8443":   {Sources: []string{SourceState}, At: written},
		"gw.dc1.example:8443": {Sources: []string{SourceConfigured}},
		"198.51.100.7:8443":   {Sources: []string{SourceRemembered}, At: time.Unix(300, 0)},
	}
	if d := cmp.Diff(want, c.entries["dc1"].origins()); d != "" {
		t.Errorf("origins (-want +got):\n%s", d)
	}
	hops := []wanfed.Path{
		{Addr: "10.0.0.8:8443", Via: ViaOwn, Local: true},
		{Addr: "10.0.0.9:8443", Via: ViaOwn, Local: true, Rank: wanfed.RankCritical},
		{Addr: "198.51.100.1:8443", Via: ViaRemote},
		{Addr: "198.51.100.2:8443", Via: ViaRemote},
		{Addr: "gw.dc1.example:8443", Via: ViaConfigured},
		{Addr: "198.51.100.7:8443", Via: ViaRemembered, Rank: wanfed.RankCached},
	}
	if d := cmp.Diff(hops, c.routes(nil).Paths["dc1"]); d != "" {
		t.Errorf("hops (-want +got):\n%s", d)
	}
}

// What a server reached a datacenter by, it knows at its next start, without the resolver too.
func TestAddressBookRemembersWhatWorked(t *testing.T) {
	cfg := AddressBookUpdaterConfig{
		DC: "dc2", PrimaryDC: "dc1", Domain: "wanfed", PrimaryGateways: []string{"gw.dc1.example:8443"},
		Backend: mem.New(), LAN: &gossip.Pool{}, WAN: &gossip.Pool{}, Ready: make(chan struct{}),
		File: filepath.Join(t.TempDir(), "addresses.json"), Logger: slog.New(slog.DiscardHandler),
	}
	hops := func(paths ...wanfed.PathStatus) (*AddressBookUpdater, []wanfed.Path) {
		t.Helper()
		cfg.Book, cfg.Paths = &wanfed.SharedAddressBook{}, func() []wanfed.PathStatus { return paths }
		a, err := NewAddressBookUpdater(cfg)
		if err != nil {
			t.Fatal(err)
		}
		return a, cfg.Book.Load().Paths["dc1"]
	}
	name := wanfed.Path{Addr: "gw.dc1.example:8443", Via: ViaConfigured}
	a, got := hops(wanfed.PathStatus{DC: "dc1", Addr: name.Addr, Remote: "198.51.100.1:8443", LastSuccess: time.Now()})
	if d := cmp.Diff([]wanfed.Path{name}, got); d != "" {
		t.Errorf("at first: %s", d)
	}
	a.remember()
	_, got = hops()
	if d := cmp.Diff([]wanfed.Path{name, {Addr: "198.51.100.1:8443", Via: ViaRemembered, Rank: wanfed.RankCached}}, got); d != "" {
		t.Errorf("at the next start: %s", d)
	}
}

// TestComputeAgain: what has not changed is taken over as it is, and a book that was computed step by step is the one that all facts
// at once make.
func TestComputeAgain(t *testing.T) {
	cfg := AddressBookUpdaterConfig{DC: "dc2", PrimaryDC: "dc1", Domain: "wanfed", PrimaryGateways: []string{"gw.dc1.example:8443"}}
	dc3 := &pb.FederationState{Datacenter: "dc3", MeshGateways: []*pb.MeshGateway{meshGateway("dc3", "gw-a", "10.0.0.9", "198.51.100.3", catalog.StatusPassing)}}
	dc4 := &pb.FederationState{Datacenter: "dc4", MeshGateways: []*pb.MeshGateway{meshGateway("dc4", "gw-a", "10.0.0.9", "198.51.100.4", catalog.StatusPassing)}}
	own := []*pb.MeshGateway{meshGateway("dc2", "gw-a", "10.0.0.9", "203.0.113.1", catalog.StatusPassing)}
	states := statesOf(dc3, dc4)
	f := facts{states: states, own: own, old: remembered{"dc3": {{addr: "198.51.100.33:8443", Known: time.Unix(1, 0)}}}}
	c := compute(cfg, f, nil)
	steps := []struct {
		name   string
		change func()
		again  []string // datacenters whose entries are new
	}{
		{"nothing", func() {}, nil},
		{"a hint", func() { f.hints = map[string][]string{"dc4": {"198.51.100.44:8443"}} }, []string{"dc4"}},
		{"the same hint", func() { f.hints = map[string][]string{"dc4": {"198.51.100.44:8443"}} }, nil},
		{"another time of what is remembered", func() { f.old = remembered{"dc3": {{addr: "198.51.100.33:8443", Known: time.Unix(2, 0)}}} }, []string{"dc3"}},
		{"a remembered address that is named", func() {
			f.old = remembered{"dc3": f.old["dc3"], "dc4": {{addr: "198.51.100.4:8443", Known: time.Unix(2, 0)}}}
		}, nil},
		{"one more remembered", func() {
			f.old = remembered{"dc3": append(f.old["dc3"], memory{addr: "198.51.100.34:8443", Known: time.Unix(3, 0)})}
		}, []string{"dc3"}},
		{"one less remembered", func() { f.old = remembered{"dc3": f.old["dc3"][:1]} }, []string{"dc3"}},
		{"a state", func() { f.states = []*told{states[0], toldBy(dc4)} }, []string{"dc4"}},
		{"an own gateway is critical", func() {
			f.own = []*pb.MeshGateway{meshGateway("dc2", "gw-a", "10.0.0.9", "203.0.113.1", catalog.StatusCritical)}
		}, []string{"dc1", "dc3", "dc4"}},
		{"a datacenter is gone", func() { f.states, f.hints = f.states[:1], nil }, []string{"dc4"}},
	}
	for _, s := range steps {
		before := c
		s.change()
		c = compute(cfg, f, before.entries)
		var again []string
		for _, dc := range []string{"dc1", "dc3", "dc4"} {
			if c.entries[dc] != before.entries[dc] {
				again = append(again, dc)
			}
		}
		if d := cmp.Diff(s.again, again); d != "" || c.same != (s.again == nil) {
			t.Errorf("%s: new entries (-want +got): %s, same %v", s.name, d, c.same)
		}
		whole := compute(cfg, f, nil)
		if d := cmp.Diff(whole.routes(nil), c.routes(nil)); d != "" || !sameSnapshot(whole.snapshot(cfg, nil), c.snapshot(cfg, nil)) {
			t.Errorf("%s: not what all facts at once make: %s", s.name, d)
		}
	}
}
