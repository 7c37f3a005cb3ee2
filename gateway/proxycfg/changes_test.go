// SPDX-License-Identifier: MPL-2.0

package proxycfg

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/wanfed/wanfed/api/pb"
)

// TestTablesOfChanges changes a snapshot at random, and compares the tables that are made from the last ones with new ones.
func TestTablesOfChanges(t *testing.T) {
	r := rand.New(rand.NewPCG(5, 6))
	snap := &pb.GatewaySnapshot{Datacenter: "dc1", Domain: "wanfed", Servers: []*pb.SnapshotServer{server("srv1", "10.0.0.1:8300")}}
	var tabs tables
	changed := 0
	for range 300 {
		next := &pb.GatewaySnapshot{Datacenter: "dc1", Domain: "wanfed", Servers: slices.Clone(snap.Servers), Datacenters: slices.Clone(snap.Datacenters)}
		for range 1 + r.IntN(3) {
			name := fmt.Sprintf("dc%d", r.IntN(12))
			i := slices.IndexFunc(next.Datacenters, func(dc *pb.SnapshotDatacenter) bool { return dc.Name == name })
			if i >= 0 {
				next.Datacenters = slices.Delete(next.Datacenters, i, i+1)
			}
			switch r.IntN(24) {
			case 0, 1, 2, 3:
			case 4:
				next.Datacenters = append(next.Datacenters, datacenter(name))
			case 5:
				next.Datacenters = append(next.Datacenters, datacenter(name, "nonsense", "10.0.1.1:1"))
			case 6:
				next.Servers = []*pb.SnapshotServer{server("srv1", fmt.Sprintf("10.0.0.%d:8300", 1+r.IntN(3)))}
			default:
				next.Datacenters = append(next.Datacenters, datacenter(name, fmt.Sprintf("10.0.1.%d:1", 1+r.IntN(5)), "gw.example:2"))
			}
		}
		if r.IntN(20) > 0 { // else they come in another order
			slices.SortFunc(next.Datacenters, func(a, b *pb.SnapshotDatacenter) int { return strings.Compare(a.Name, b.Name) })
		}
		if tabs.snap != nil && tabs.change(next) != nil {
			changed++
		}
		lan, wan, want := Tables(next, ToServers{})
		var faults []error
		tabs, faults = tabs.next(next, ToServers{})
		if d := cmp.Diff(lan.Routes(), tabs.lan.Routes()) + cmp.Diff(wan.Routes(), tabs.wan.Routes()); d != "" {
			t.Fatalf("%s from %v to %v", d, snap, next)
		}
		if fmt.Sprint(faults) != fmt.Sprint(want) {
			t.Fatalf("faults %v, want %v", faults, want)
		}
		snap = next
	}
	if changed < 40 {
		t.Errorf("%d of 300 tables were made from the last ones", changed)
	}
}

// BenchmarkTables has snapshots of many datacenters, of which one changes.
func BenchmarkTables(b *testing.B) {
	const n = 10000
	of := func(port int) *pb.GatewaySnapshot {
		snap := &pb.GatewaySnapshot{Datacenter: "dc1", Domain: "wanfed", Servers: []*pb.SnapshotServer{server("srv1", "10.0.0.1:8300")}}
		for i := range n {
			addr := fmt.Sprintf("10.1.%d.%d:8443", i/250, i%250+1)
			if i == n/2 {
				addr = fmt.Sprintf("10.2.0.1:%d", port)
			}
			snap.Datacenters = append(snap.Datacenters, datacenter(fmt.Sprintf("other%05d", i), addr))
		}
		return snap
	}
	snaps := []*pb.GatewaySnapshot{of(1), of(2)}
	b.Run("build", func(b *testing.B) {
		for b.Loop() {
			Tables(snaps[0], ToServers{})
		}
	})
	b.Run("change", func(b *testing.B) {
		tabs, _ := tables{}.next(snaps[0], ToServers{})
		for i := 1; b.Loop(); i++ {
			if was := tabs.lan; was != nil {
				if tabs, _ = tabs.next(snaps[i%2], ToServers{}); tabs.lan == was {
					b.Fatal("nothing has changed")
				}
			}
		}
	})
}
