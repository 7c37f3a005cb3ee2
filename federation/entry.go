// SPDX-License-Identifier: MPL-2.0

package federation

import (
	"maps"
	"slices"
	"time"

	"github.com/wanfed/wanfed/api/pb"
	"github.com/wanfed/wanfed/catalog"
	"github.com/wanfed/wanfed/wanfed"
)

// entry is what is known of one datacenter, and what follows from it; immutable. Most changes of a large federation are about
// one datacenter: the entries of the others go from one book to the next as they are.
type entry struct {
	told  *told
	hints []string
	own   places // of the gateways here

	far   places   // of the gateways there: as many as known are named now, the others are remembered
	known []string // the addresses that somebody names now
	hops  []wanfed.Path
	snap  *pb.SnapshotDatacenter
}

// computed is what follows from facts.
type computed struct {
	entries map[string]*entry // by datacenter
	same    bool              // as before
}

// compute turns facts into what is known of each datacenter, and takes from before what has not changed. It is pure.
func compute(cfg AddressBookUpdaterConfig, f facts, before map[string]*entry) computed {
	c := computed{entries: make(map[string]*entry, len(before)), same: true}
	own := placesOf(f.own, catalog.TagLAN, fromHeartbeat, time.Time{})
	add := func(dc string, t *told) {
		e := before[dc]
		if e == nil || e.told != t || !slices.Equal(e.hints, f.hints[dc]) || !slices.Equal(e.own, own) || !f.old.agrees(dc, e) {
			e, c.same = newEntry(cfg, dc, t, f, own), false
		}
		c.entries[dc] = e
	}
	for _, t := range f.states {
		if t.dc != cfg.DC {
			add(t.dc, t)
		}
	}
	for dc := range f.hints {
		if c.entries[dc] == nil {
			add(dc, nil)
		}
	}
	if cfg.DC != cfg.PrimaryDC && c.entries[cfg.PrimaryDC] == nil {
		add(cfg.PrimaryDC, nil)
	}
	c.same = c.same && len(c.entries) == len(before)
	return c
}

func newEntry(cfg AddressBookUpdaterConfig, dc string, t *told, f facts, own places) *entry {
	e := &entry{told: t, hints: f.hints[dc], own: own}
	for _, addr := range e.hints { // as fresh as gossip is: the record may be older, and stays behind
		e.far = e.far.add(addr, false, fromGossip, time.Time{})
	}
	if t != nil {
		for _, p := range t.places {
			e.far = e.far.add(p.addr, p.critical, p.from, p.at)
		}
	}
	if dc == cfg.PrimaryDC {
		for _, addr := range cfg.PrimaryGateways {
			e.far = e.far.add(addr, false, fromConfig, time.Time{})
		}
	}
	e.known = e.far.addrs()
	for _, addr := range f.old.of(dc) {
		if !slices.Contains(e.known, addr) {
			e.far = e.far.add(addr, false, fromMemory, f.old.get(dc, addr).last())
		}
	}
	e.far = slices.Clip(e.far)
	if len(e.far) == 0 {
		return e
	}
	e.hops = make([]wanfed.Path, 0, len(own)+len(e.far))
	for _, p := range own {
		h := wanfed.Path{Addr: p.addr, Via: ViaOwn, Local: true}
		if p.critical {
			h.Rank = wanfed.RankCritical
		}
		e.hops = append(e.hops, h)
	}
	for _, p := range e.far {
		if own.find(p.addr) < 0 { // else an own gateway has it, which is what a dial from here finds
			e.hops = append(e.hops, p.hop())
		}
	}
	e.snap = &pb.SnapshotDatacenter{Name: dc, Gateways: e.far.addrs()}
	return e
}

// agrees says whether what r has of dc is what e was made with.
func (r remembered) agrees(dc string, e *entry) bool {
	left := len(e.far) - len(e.known)
	for _, m := range r[dc] {
		i := e.far.find(m.addr)
		if i < 0 || i >= len(e.known) && !e.far[i].at.Equal(m.last()) {
			return false
		}
		if i >= len(e.known) {
			left--
		}
	}
	return left == 0
}

// origins tells of each hop where it is known from, by address.
func (e *entry) origins() map[string]Origin {
	if e == nil || len(e.hops) == 0 {
		return nil
	}
	out := make(map[string]Origin, len(e.hops))
	for _, p := range e.far {
		out[p.addr] = p.origin()
	}
	for _, p := range e.own {
		out[p.addr] = p.origin()
	}
	return out
}

func (c computed) routes(servers map[string]string) *wanfed.AddressBook {
	r := &wanfed.AddressBook{Servers: servers, Paths: make(map[string][]wanfed.Path, len(c.entries))}
	for dc, e := range c.entries {
		if len(e.hops) > 0 {
			r.Paths[dc] = e.hops
		}
	}
	return r
}

func (c computed) snapshot(cfg AddressBookUpdaterConfig, servers map[string]string) *pb.GatewaySnapshot {
	s := &pb.GatewaySnapshot{Datacenter: cfg.DC, Domain: cfg.Domain}
	for _, dc := range slices.Sorted(maps.Keys(c.entries)) {
		if e := c.entries[dc]; e.snap != nil {
			s.Datacenters = append(s.Datacenters, e.snap)
		}
	}
	for _, node := range slices.Sorted(maps.Keys(servers)) {
		s.Servers = append(s.Servers, &pb.SnapshotServer{Node: node, Address: servers[node]})
	}
	return s
}
