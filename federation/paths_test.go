// SPDX-License-Identifier: MPL-2.0

package federation

import (
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/protobuf/testing/protocmp"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/wanfed/wanfed/api/pb"
	"github.com/wanfed/wanfed/catalog"
	"github.com/wanfed/wanfed/internal/netaddr"
	"github.com/wanfed/wanfed/wanfed"
)

func meshGateway(dc, node, lan, wan, status string) *pb.MeshGateway {
	return &pb.MeshGateway{
		Node: &pb.Node{Node: node, Datacenter: dc},
		Service: &pb.Service{Node: node, Id: node, Kind: catalog.KindMeshGateway,
			TaggedAddresses: map[string]*pb.Address{
				catalog.TagLAN: {Address: lan, Port: 8443}, catalog.TagWAN: {Address: wan, Port: 8443},
			}},
		Checks: []*pb.Check{{Node: node, CheckId: "service:" + node, ServiceId: node, Status: status}},
	}
}

func stateOf(dc string, gateways ...*pb.MeshGateway) *stateGateways {
	return gatewaysOf(&pb.FederationState{Datacenter: dc, MeshGateways: gateways})
}

// The inputs of these tests: dc2 is a secondary of dc1. The gateways of dc3 and
// of dc2 have the same LAN address, because datacenters may use the same
// subnet.
var (
	secondary = AddressBookUpdaterConfig{
		DC: "dc2", PrimaryDC: "dc1", Domain: "wanfed",
		PrimaryGateways: []string{"gw.dc1.example:8443", "198.51.100.1:8443"},
	}
	dc1State = stateOf("dc1",
		meshGateway("dc1", "gw-a", "10.0.0.1", "198.51.100.1", catalog.StatusCritical),
		meshGateway("dc1", "gw-b", "10.0.0.2", "198.51.100.2", catalog.StatusPassing))
	localGateways = []*pb.MeshGateway{meshGateway("dc2", "gw-a", "10.0.0.9", "203.0.113.1", catalog.StatusPassing)}
	dc3State      = stateOf("dc3", meshGateway("dc3", "gw-a", "10.0.0.9", "198.51.100.3", catalog.StatusWarning))

	localPath = wanfed.Path{Addr: "10.0.0.9:8443", Via: ViaLocalGateway, Local: true}
)

func configured(addr string) wanfed.Path { return wanfed.Path{Addr: addr, Via: ViaConfigured} }

func remote(addr string) wanfed.Path { return wanfed.Path{Addr: addr, Via: ViaRemoteGateway} }

func cached(addr string) wanfed.Path {
	return wanfed.Path{Addr: addr, Via: ViaCached, Rank: wanfed.RankCached}
}

func TestCompute_Secondary(t *testing.T) {
	configuredDC1 := []wanfed.Path{configured("gw.dc1.example:8443"), configured("198.51.100.1:8443")}
	configuredSnap := &pb.SnapshotDatacenter{Name: "dc1", Gateways: secondary.PrimaryGateways, Current: 2}
	criticalDC1 := wanfed.Path{Addr: "198.51.100.1:8443", Via: ViaConfigured, Rank: wanfed.RankCritical}
	withLocal := func(paths ...wanfed.Path) []wanfed.Path { return append([]wanfed.Path{localPath}, paths...) }

	for _, tt := range []struct {
		name  string
		in    inputs
		paths map[string][]wanfed.Path
		snap  []*pb.SnapshotDatacenter
	}{
		{
			name:  "first start: configured addresses only",
			paths: map[string][]wanfed.Path{"dc1": configuredDC1},
			snap:  []*pb.SnapshotDatacenter{configuredSnap},
		},
		{
			name:  "a local gateway comes first, before any state is known",
			in:    inputs{local: localGateways},
			paths: map[string][]wanfed.Path{"dc1": withLocal(configuredDC1...)},
			snap:  []*pb.SnapshotDatacenter{configuredSnap},
		},
		{
			name: "healthy gateways come before critical gateways, and the local datacenter is omitted",
			in: inputs{
				local: localGateways, states: []*stateGateways{dc1State, stateOf("dc2", localGateways...), dc3State},
				servers: map[string]string{"srv1": "10.0.0.5:8300"},
			},
			paths: map[string][]wanfed.Path{
				"dc1": withLocal(remote("198.51.100.2:8443"), criticalDC1, configured("gw.dc1.example:8443")),
				"dc3": withLocal(remote("198.51.100.3:8443")),
			},
			snap: []*pb.SnapshotDatacenter{
				{Name: "dc1", Gateways: []string{"198.51.100.2:8443", "198.51.100.1:8443", "gw.dc1.example:8443"},
					Current: 1},
				{Name: "dc3", Gateways: []string{"198.51.100.3:8443"}, Current: 1},
			},
		},
		{
			name: "cached addresses come last, and add no datacenter",
			in: inputs{states: []*stateGateways{dc3State}, cache: addressCache{
				"dc3": {
					{addr: "198.51.100.30:8443", Known: time.Unix(1, 0)},
					{addr: "198.51.100.31:8443", Worked: time.Unix(2, 0)},
					{addr: "198.51.100.3:8443", Known: time.Unix(3, 0)},
				},
				"dc8": {{addr: "198.51.100.8:8443", Known: time.Unix(1, 0)}},
			}},
			paths: map[string][]wanfed.Path{
				"dc1": configuredDC1,
				"dc3": {remote("198.51.100.3:8443"), cached("198.51.100.31:8443"), cached("198.51.100.30:8443")},
			},
			snap: []*pb.SnapshotDatacenter{
				configuredSnap,
				{Name: "dc3", Gateways: []string{"198.51.100.3:8443", "198.51.100.31:8443", "198.51.100.30:8443"},
					Current: 1},
			},
		},
		{
			name: "gateway tags come before the state",
			in: inputs{
				local: localGateways, states: []*stateGateways{dc3State},
				tagged: map[string][]string{"dc3": {"198.51.100.33:8443"}, "dc5": {"198.51.100.5:8443"}},
			},
			paths: map[string][]wanfed.Path{
				"dc1": withLocal(configuredDC1...),
				"dc3": withLocal(remote("198.51.100.33:8443"), remote("198.51.100.3:8443")),
				"dc5": withLocal(remote("198.51.100.5:8443")),
			},
			snap: []*pb.SnapshotDatacenter{
				configuredSnap,
				{Name: "dc3", Gateways: []string{"198.51.100.33:8443", "198.51.100.3:8443"}, Current: 2},
				{Name: "dc5", Gateways: []string{"198.51.100.5:8443"}, Current: 1},
			},
		},
		{
			name:  "a datacenter without gateways has no path, even with local gateways",
			in:    inputs{local: localGateways, states: []*stateGateways{stateOf("dc4")}},
			paths: map[string][]wanfed.Path{"dc1": withLocal(configuredDC1...)},
			snap:  []*pb.SnapshotDatacenter{configuredSnap},
		},
	} {
		t.Run(tt.name, func(t *testing.T) {
			c := compute(secondary, tt.in, nil)
			if d := cmp.Diff(tt.paths, c.addressBook(tt.in.servers).Paths); d != "" {
				t.Errorf("addressBook().Paths (-want +got):\n%s", d)
			}
			snapshot := c.snapshot(secondary, tt.in.servers)
			if d := cmp.Diff(tt.snap, snapshot.Datacenters, protocmp.Transform()); d != "" {
				t.Errorf("snapshot().Datacenters (-want +got):\n%s", d)
			}
			if len(snapshot.Servers) != len(tt.in.servers) {
				t.Errorf("snapshot().Servers = %v, want %v", snapshot.Servers, tt.in.servers)
			}
		})
	}
}

func TestCompute_PrimaryWithoutSecondaries(t *testing.T) {
	cfg := AddressBookUpdaterConfig{DC: "dc1", PrimaryDC: "dc1", Domain: "wanfed"}
	c := compute(cfg, inputs{}, nil)
	if len(c.addressBook(nil).Paths) != 0 || len(c.snapshot(cfg, nil).Datacenters) != 0 {
		t.Errorf("compute() = %v, want no entries", c.entries)
	}
}

func TestOrigins(t *testing.T) {
	cfg := secondary
	cfg.PrimaryGateways = []string{"gw.dc1.example:8443"}
	written := time.Unix(500, 0).UTC()
	state := gatewaysOf(&pb.FederationState{
		Datacenter: "dc1", UpdatedAt: timestamppb.New(written), MeshGateways: []*pb.MeshGateway{
			// healthy according to the tag
			meshGateway("dc1", "gw-a", "10.0.0.1", "198.51.100.1", catalog.StatusCritical),
			meshGateway("dc1", "gw-b", "10.0.0.2", "198.51.100.2", catalog.StatusPassing),
			meshGateway("dc1", "gw-c", "10.0.0.3", "10.0.0.9", catalog.StatusPassing), // the address of a local gateway
		},
	})
	c := compute(cfg, inputs{
		local: []*pb.MeshGateway{
			meshGateway("dc2", "gw-a", "10.0.0.9", "203.0.113.1", catalog.StatusCritical),
			meshGateway("dc2", "gw-b", "10.0.0.8", "203.0.113.2", catalog.StatusPassing),
		},
		states: []*stateGateways{state},
		tagged: map[string][]string{"dc1": {"198.51.100.1:8443"}},
		cache: addressCache{"dc1": {
			{addr: "198.51.100.2:8443", Known: time.Unix(400, 0)},
			{addr: "198.51.100.7:8443", Known: time.Unix(300, 0)},
			{addr: "gw.dc1.example:8443", Known: time.Unix(600, 0)},
		}},
	}, nil)
	want := map[string]Origin{
		"10.0.0.8:8443":       {Sources: []string{SourceHeartbeat}},
		"10.0.0.9:8443":       {Sources: []string{SourceHeartbeat}},
		"198.51.100.1:8443":   {Sources: []string{SourceGossip, SourceState}},
		"198.51.100.2:8443":   {Sources: []string{SourceState}, At: written},
		"gw.dc1.example:8443": {Sources: []string{SourceConfigured}},
		"198.51.100.7:8443":   {Sources: []string{SourceCache}, At: time.Unix(300, 0)},
	}
	if d := cmp.Diff(want, c.entries["dc1"].origins()); d != "" {
		t.Errorf("origins() (-want +got):\n%s", d)
	}
	paths := []wanfed.Path{
		{Addr: "10.0.0.8:8443", Via: ViaLocalGateway, Local: true},
		{Addr: "10.0.0.9:8443", Via: ViaLocalGateway, Local: true, Rank: wanfed.RankCritical},
		remote("198.51.100.1:8443"), remote("198.51.100.2:8443"),
		configured("gw.dc1.example:8443"), cached("198.51.100.7:8443"),
	}
	if d := cmp.Diff(paths, c.addressBook(nil).Paths["dc1"]); d != "" {
		t.Errorf("paths (-want +got):\n%s", d)
	}
}

// An address of a local gateway or server is not a path to another datacenter,
// whatever source names it.
func TestCompute_LeavesOutOwnAddresses(t *testing.T) {
	in := inputs{
		local: localGateways, servers: map[string]string{"srv1": "10.0.0.11:8300"},
		states: []*stateGateways{stateOf("dc3",
			meshGateway("dc3", "gw-a", "10.3.0.1", "10.0.0.9", catalog.StatusPassing),
			meshGateway("dc3", "gw-b", "10.3.0.2", "203.0.113.1", catalog.StatusPassing),
			meshGateway("dc3", "gw-c", "10.3.0.3", "198.51.100.3", catalog.StatusPassing))},
		tagged: map[string][]string{"dc3": {"10.0.0.11:8300"}},
		cache:  addressCache{"dc3": {{addr: "10.0.0.9:8443", Known: time.Now()}}},
	}
	first := compute(secondary, in, nil)
	want := []wanfed.Path{localPath, remote("198.51.100.3:8443")}
	if got := first.entries["dc3"].paths; !slices.Equal(got, want) {
		t.Errorf("paths = %v, want %v", got, want)
	}
	if got := first.entries["dc3"].snap.Gateways; !slices.Equal(got, []string{"198.51.100.3:8443"}) {
		t.Errorf("addresses for gateways = %v, want 198.51.100.3 alone", got)
	}
	if !compute(secondary, in, first.entries).same {
		t.Error("compute() of the same inputs = other entries, want the same")
	}
	in.servers = nil
	if got := compute(secondary, in, first.entries).entries["dc3"].snap.Gateways; len(got) != 2 {
		t.Errorf("addresses for gateways without the server = %v, want 2", got)
	}
}

// compute reuses the entries whose inputs have not changed. After each change,
// the address book equals an address book that is computed from scratch.
func TestCompute_ReusesEntries(t *testing.T) {
	cfg := secondary
	cfg.PrimaryGateways = []string{"gw.dc1.example:8443"}
	gw4 := meshGateway("dc4", "gw-a", "10.0.0.9", "198.51.100.4", catalog.StatusPassing)
	dc4State := stateOf("dc4", gw4)
	in := inputs{
		states: []*stateGateways{dc3State, dc4State}, local: localGateways,
		cache: addressCache{"dc3": {{addr: "198.51.100.33:8443", Known: time.Unix(1, 0)}}},
	}
	tagDC4 := func() { in.tagged = map[string][]string{"dc4": {"198.51.100.44:8443"}} }
	c := compute(cfg, in, nil)
	for _, step := range []struct {
		name   string
		change func()
		want   []string // datacenters with a new entry
	}{
		{"no change", func() {}, nil},
		{"tag", tagDC4, []string{"dc4"}},
		{"same tag", tagDC4, nil},
		{"new time of a cached address", func() {
			in.cache = addressCache{"dc3": {{addr: "198.51.100.33:8443", Known: time.Unix(2, 0)}}}
		}, []string{"dc3"}},
		{"cached address that the state names", func() {
			in.cache = addressCache{"dc3": in.cache["dc3"],
				"dc4": {{addr: "198.51.100.4:8443", Known: time.Unix(2, 0)}}}
		}, nil},
		{"additional cached address", func() {
			added := &cachedAddress{addr: "198.51.100.34:8443", Known: time.Unix(3, 0)}
			in.cache = addressCache{"dc3": append(in.cache["dc3"], added)}
		}, []string{"dc3"}},
		{"removed cached address", func() { in.cache = addressCache{"dc3": in.cache["dc3"][:1]} }, []string{"dc3"}},
		{"state", func() { in.states = []*stateGateways{dc3State, stateOf("dc4", gw4)} }, []string{"dc4"}},
		{"critical local gateway", func() {
			in.local = []*pb.MeshGateway{meshGateway("dc2", "gw-a", "10.0.0.9", "203.0.113.1", catalog.StatusCritical)}
		}, []string{"dc1", "dc3", "dc4"}},
		{"removed datacenter", func() { in.states, in.tagged = in.states[:1], nil }, []string{"dc4"}},
	} {
		before := c
		step.change()
		c = compute(cfg, in, before.entries)
		var got []string
		for _, dc := range []string{"dc1", "dc3", "dc4"} {
			if c.entries[dc] != before.entries[dc] {
				got = append(got, dc)
			}
		}
		if d := cmp.Diff(step.want, got); d != "" || c.same != (step.want == nil) {
			t.Errorf("%s: compute().same = %v, new entries (-want +got):\n%s", step.name, c.same, d)
		}
		fromScratch := compute(cfg, in, nil)
		if d := cmp.Diff(fromScratch.addressBook(nil), c.addressBook(nil)); d != "" {
			t.Errorf("%s: addressBook() (-want +got):\n%s", step.name, d)
		}
		if got, want := c.snapshot(cfg, nil), fromScratch.snapshot(cfg, nil); !sameSnapshot(got, want) {
			t.Errorf("%s: snapshot() = %v, want %v", step.name, got, want)
		}
	}
}

// Addresses of each class in the gateway tag and the federation state of dc3: with
// and without such addresses in the local datacenter.
func TestPaths_Classes(t *testing.T) {
	routable := []string{"198.51.100.3:8443", "10.0.0.1:8443", "[2001:db8::1]:8443", "gw.example:8443", "[fd00::1]:8443"}
	loopback := []string{"127.0.0.1:22", "[::1]:22", "[::ffff:127.0.0.1]:22", "localhost:22", "x.Localhost.:22"}
	linkLocal := []string{"169.254.169.254:80", "[fe80::1]:22"}
	never := []string{"224.0.0.1:22", "[ff02::1]:22", "0.0.0.0:22"}
	all := slices.Concat(routable, loopback, linkLocal, never)
	for name, tt := range map[string]struct {
		server string // of the local datacenter
		want   []string
	}{
		"routable":   {"10.9.0.1:8300", routable},
		"loopback":   {"127.0.0.1:8300", slices.Concat(routable, loopback)},
		"link-local": {"169.254.0.1:8300", slices.Concat(routable, linkLocal)},
		"multicast":  {"224.0.0.9:8300", routable},
	} {
		for source, in := range map[string]inputs{
			"gossip": {tagged: map[string][]string{"dc3": all}},
			"state": {states: []*stateGateways{{dc: "dc3", candidates: func() (cs candidates) {
				for _, addr := range all {
					cs = cs.add(addr, false, fromState, time.Time{})
				}
				return cs
			}()}}},
		} {
			in.servers = map[string]string{"srv1": tt.server}
			e := compute(secondary, in, nil).entries["dc3"]
			if got := e.remote.addrs(); !slices.Equal(got, tt.want) || !slices.Equal(e.snap.Gateways, tt.want) {
				t.Errorf("addresses from %s with a %s server = %q and %q for gateways, want %q", source, name, got,
					e.snap.Gateways, tt.want)
			}
		}
	}
	// The names of other datacenters are checked again when they are resolved.
	named := inputs{servers: map[string]string{"srv1": "10.9.0.1:8300"},
		tagged: map[string][]string{"dc1": {"10.0.0.1:8443", "gw.example:8443", "own.example:8443"}}}
	conf := secondary
	conf.PrimaryGateways = []string{"own.example:8443"}
	e := compute(conf, named, nil).entries["dc1"]
	const all3 = netaddr.Loopback | netaddr.LinkLocal | netaddr.Other
	got := []netaddr.Class{e.paths[0].Refuse, e.paths[1].Refuse, e.paths[2].Refuse}
	if !slices.Equal(got, []netaddr.Class{0, all3, 0}) ||
		!slices.Equal(e.snap.Refuse, []uint32{0, uint32(all3)}) {
		t.Errorf("refused kinds = %v, and %v for gateways, want all for gw.example alone", got, e.snap.Refuse)
	}
	named.servers["srv1"] = "127.0.0.1:8300"
	if got := compute(conf, named, nil).entries["dc1"].paths[1].Refuse; got != netaddr.LinkLocal|netaddr.Other {
		t.Errorf("refused kinds with a loopback server = %v, want all but loopback", got)
	}
	// The configuration of this datacenter and addresses that worked are used.
	cfg := secondary
	cfg.PrimaryGateways = []string{"127.0.0.1:8443"}
	in := inputs{cache: addressCache{"dc1": {{addr: "127.0.0.2:8443", Worked: time.Unix(9, 0)}}}}
	if got := compute(cfg, in, nil).entries["dc1"].remote.addrs(); !slices.Equal(got, []string{"127.0.0.1:8443", "127.0.0.2:8443"}) {
		t.Errorf("addresses of the configuration and the cache = %q, want both", got)
	}
}
