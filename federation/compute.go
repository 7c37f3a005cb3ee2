// SPDX-License-Identifier: MPL-2.0

package federation

import (
	"cmp"
	"maps"
	"slices"
	"time"

	"github.com/wanfed/wanfed/api/pb"
	"github.com/wanfed/wanfed/catalog"
	"github.com/wanfed/wanfed/wanfed"
)

// facts are the inputs of the book, read at one moment.
type facts struct {
	states  []*pb.FederationState
	own     []*pb.MeshGateway
	servers map[string]string // node → host:port of alive servers of this datacenter
	hints   map[string][]string
	old     remembered
}

// Origin says where the address of a hop is known from.
type Origin struct {
	Sources []string  // words that begin with Source
	At      time.Time // when the last of them said so; zero: it says so now
}

// Words for wanfed.Hop.Via.
const (
	ViaOwn        = "own gateway"
	ViaRemote     = "remote gateway"
	ViaConfigured = "configured address"
	ViaRemembered = "remembered address"
)

// Words for Origin.Sources.
const (
	SourceHeartbeat  = "heartbeat" // of a gateway here
	SourceGossip     = "gossip"
	SourceState      = "federation state"
	SourceConfigured = "configuration"
	SourceRemembered = "earlier" // and nobody else names it now
)

// place is one address in the making of the book.
type place struct {
	addr     string
	critical bool
	Origin
}

// places are in order of preference, each address once.
type places []place

// add appends addr, or, when it is there, notes that one more source names it.
func (ps places) add(addr string, critical bool, source string, at time.Time) places {
	i := slices.IndexFunc(ps, func(p place) bool { return p.addr == addr })
	if i < 0 {
		return append(ps, place{addr, critical, Origin{[]string{source}, at}})
	}
	ps[i].Sources = append(ps[i].Sources, source)
	if !ps[i].At.IsZero() && (at.IsZero() || at.After(ps[i].At)) {
		ps[i].At = at
	}
	return ps
}

func (ps places) addrs() []string {
	var out []string
	for _, p := range ps {
		out = append(out, p.addr)
	}
	return out
}

// hop makes a hop of p, which is no own gateway's.
func (p place) hop() wanfed.Hop {
	h := wanfed.Hop{Addr: p.addr, Via: ViaRemote}
	switch {
	case slices.Contains(p.Sources, SourceConfigured):
		h.Via = ViaConfigured
	case slices.Contains(p.Sources, SourceRemembered):
		h.Via, h.Rank = ViaRemembered, wanfed.RankRemembered
	}
	if p.critical {
		h.Rank = wanfed.RankCritical
	}
	return h
}

// computed is what follows from facts.
type computed struct {
	routes  *wanfed.Routes
	snap    *pb.GatewaySnapshot
	known   map[string][]string          // by datacenter, the addresses that somebody names now
	origins map[string]map[string]Origin // by datacenter and address
}

// compute turns facts into what is published. It is pure.
func compute(cfg AddressBookConfig, f facts) computed {
	c := computed{
		routes:  &wanfed.Routes{Servers: f.servers, Hops: map[string][]wanfed.Hop{}},
		snap:    &pb.GatewaySnapshot{Datacenter: cfg.DC, Domain: cfg.Domain},
		known:   map[string][]string{},
		origins: map[string]map[string]Origin{},
	}
	far := named(cfg, f)
	own := placesOf(nil, f.own, catalog.TagLAN, SourceHeartbeat, time.Time{})
	for _, dc := range slices.Sorted(maps.Keys(far)) {
		c.known[dc] = far[dc].addrs()
		for _, addr := range f.old.of(dc) {
			if !slices.Contains(c.known[dc], addr) {
				far[dc] = far[dc].add(addr, false, SourceRemembered, f.old[dc][addr].last())
			}
		}
		if len(far[dc]) == 0 {
			continue
		}
		c.origins[dc] = map[string]Origin{}
		var hops []wanfed.Hop
		for _, p := range own {
			h := wanfed.Hop{Addr: p.addr, Via: ViaOwn, Own: true}
			if p.critical {
				h.Rank = wanfed.RankCritical
			}
			hops = append(hops, h)
			c.origins[dc][p.addr] = p.Origin
		}
		for _, p := range far[dc] {
			if _, taken := c.origins[dc][p.addr]; !taken { // by an own gateway, which is what a dial from here finds
				hops = append(hops, p.hop())
				c.origins[dc][p.addr] = p.Origin
			}
		}
		c.routes.Hops[dc] = hops
		c.snap.Datacenters = append(c.snap.Datacenters, &pb.SnapshotDatacenter{Name: dc, Gateways: far[dc].addrs()})
	}
	for _, node := range slices.Sorted(maps.Keys(f.servers)) {
		c.snap.Servers = append(c.snap.Servers, &pb.SnapshotServer{Node: node, Address: f.servers[node]})
	}
	return c
}

// named lists, by datacenter, the WAN addresses that somebody names now.
func named(cfg AddressBookConfig, f facts) map[string]places {
	far := map[string]places{}
	if cfg.DC != cfg.PrimaryDC {
		far[cfg.PrimaryDC] = nil
	}
	for dc, told := range f.hints { // as fresh as gossip is: the record may be older, and stays behind
		for _, addr := range told {
			far[dc] = far[dc].add(addr, false, SourceGossip, time.Time{})
		}
	}
	for _, s := range f.states {
		if s.Datacenter != cfg.DC {
			far[s.Datacenter] = placesOf(far[s.Datacenter], s.MeshGateways, catalog.TagWAN, SourceState, s.GetUpdatedAt().AsTime())
		}
	}
	if cfg.DC != cfg.PrimaryDC {
		for _, addr := range cfg.PrimaryGateways {
			far[cfg.PrimaryDC] = far[cfg.PrimaryDC].add(addr, false, SourceConfigured, time.Time{})
		}
	}
	return far
}

// addrs lists the addresses of gateways, healthy ones first, each once.
func addrs(gs []*pb.MeshGateway, tag string) []string {
	return placesOf(nil, gs, tag, "", time.Time{}).addrs()
}

// placesOf adds the addresses of gateways to ps, healthy ones first. Critical ones stay at the end: a health check may be
// wrong, and the last known address is never dropped.
func placesOf(ps places, gs []*pb.MeshGateway, tag, source string, at time.Time) places {
	gs = slices.Clone(gs)
	slices.SortStableFunc(gs, func(a, b *pb.MeshGateway) int {
		return cmp.Or(-compareBool(catalog.Healthy(a), catalog.Healthy(b)), byNode(a, b))
	})
	for _, g := range gs {
		if addr := catalog.TaggedAddr(g, tag); addr != "" && !ps.has(addr, source) {
			ps = ps.add(addr, !catalog.Healthy(g), source, at)
		}
	}
	return ps
}

// has says whether source has named addr.
func (ps places) has(addr, source string) bool {
	return slices.ContainsFunc(ps, func(p place) bool { return p.addr == addr && slices.Contains(p.Sources, source) })
}

func compareBool(a, b bool) int {
	switch {
	case a == b:
		return 0
	case a:
		return 1
	}
	return -1
}

// union appends those of b that a has not.
func union(a, b []string) []string {
	for _, s := range b {
		if !slices.Contains(a, s) {
			a = append(a, s)
		}
	}
	return a
}
