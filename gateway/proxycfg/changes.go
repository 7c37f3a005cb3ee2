// SPDX-License-Identifier: MPL-2.0

package proxycfg

import (
	"slices"

	"github.com/wanfed/wanfed/api/pb"
	"github.com/wanfed/wanfed/gateway"
	"github.com/wanfed/wanfed/tlsutil"
)

// tables are what the two sides route by, and the snapshot that they were made of. The zero value is of none.
type tables struct {
	snap     *pb.GatewaySnapshot
	lan, wan *gateway.Table
	whole    bool // nothing of the snapshot was left out
}

// next makes the tables of another snapshot, as Tables does, from those of this one where that is possible: then it takes as long
// as there are changes, but for a comparison.
func (t tables) next(snap *pb.GatewaySnapshot, to ToServers) (_ tables, faults []error) {
	if lan := t.change(snap); lan != nil {
		return tables{snap: snap, lan: lan, wan: t.wan, whole: true}, nil
	}
	lan, wan, faults := Tables(snap, to)
	return tables{snap: snap, lan: lan, wan: wan, whole: len(faults) == 0}, faults
}

// change returns the LAN side's table for a snapshot that differs only by other datacenters; that of the WAN side stays. It returns
// nil for one that differs by more, or has a fault, which only Tables can tell with all others.
func (t tables) change(snap *pb.GatewaySnapshot) *gateway.Table {
	was := t.snap
	if !t.whole || was.GetDatacenter() != snap.GetDatacenter() || was.GetDomain() != snap.GetDomain() ||
		!slices.EqualFunc(was.GetServers(), snap.GetServers(), sameServer) || !byName(was.GetDatacenters()) || !byName(snap.GetDatacenters()) {
		return nil
	}
	b := builder{dc: snap.GetDatacenter(), domain: snap.GetDomain(), seen: map[string]bool{}}
	var gone []string
	leave := func(dc *pb.SnapshotDatacenter) {
		if dc.Name != b.dc {
			name := tlsutil.ServerName("", dc.Name, b.domain)
			gone = append(gone, name, "*."+name)
		}
	}
	old, now := was.GetDatacenters(), snap.GetDatacenters()
	for len(old) > 0 || len(now) > 0 {
		switch {
		case len(now) == 0 || len(old) > 0 && old[0].Name < now[0].Name:
			leave(old[0])
			old = old[1:]
		case len(old) == 0 || now[0].Name < old[0].Name:
			b.datacenter(now[0])
			now = now[1:]
		default:
			if !slices.Equal(old[0].Gateways, now[0].Gateways) {
				leave(old[0])
				b.datacenter(now[0])
			}
			old, now = old[1:], now[1:]
		}
	}
	if len(b.faults) > 0 {
		return nil
	}
	lan, err := t.lan.Change(gone, b.routes)
	if err != nil {
		return nil
	}
	return lan
}

func sameServer(a, b *pb.SnapshotServer) bool { return a.Node == b.Node && a.Address == b.Address }

// byName says whether datacenters are in the order that snapshots have them in, each once.
func byName(dcs []*pb.SnapshotDatacenter) bool {
	for i := 1; i < len(dcs); i++ {
		if dcs[i-1].Name >= dcs[i].Name {
			return false
		}
	}
	return true
}
