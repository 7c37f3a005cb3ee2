// SPDX-License-Identifier: MPL-2.0

package federation

import (
	"cmp"
	"maps"
	"slices"
	"time"

	"github.com/wanfed/wanfed/api/pb"
	"github.com/wanfed/wanfed/catalog"
	"github.com/wanfed/wanfed/internal/netaddr"
	"github.com/wanfed/wanfed/wanfed"
)

// Values of wanfed.Path.Via in the address book.
const (
	ViaLocalGateway  = "own gateway"
	ViaRemoteGateway = "remote gateway"
	ViaConfigured    = "configured address"
	ViaCached        = "cached address"
	ViaUnconfirmed   = "unconfirmed address" // see lastResort
)

// Values of Origin.Sources.
const (
	SourceHeartbeat  = "heartbeat" // registration of a local gateway
	SourceGossip     = "gossip"    // gateway tag of a server
	SourceState      = "federation state"
	SourceConfigured = "configuration"
	SourceCache      = "cache" // no other source contains the address now
	// SourceReport is gossip of other datacenters that the datacenter has not
	// confirmed.
	SourceReport = "unconfirmed report"
)

// Origin describes the sources of the address of a path.
type Origin struct {
	// Sources are values that begin with Source.
	Sources []string
	// At is the last time at which a source contained the address. Zero means
	// that a source contains it now.
	At time.Time
}

// sources is a set of sources. It has one byte, because an address book
// contains a set for each gateway of the federation.
type sources uint8

const (
	fromHeartbeat sources = 1 << iota
	fromGossip
	fromState
	fromConfig
	fromCache
	fromReport
)

// names returns the sources in the form of Origin.Sources.
func (s sources) names() (out []string) {
	for i, name := range []string{SourceHeartbeat, SourceGossip, SourceState, SourceConfigured, SourceCache, SourceReport} {
		if s&(1<<i) != 0 {
			out = append(out, name)
		}
	}
	return out
}

// candidate is the address of a gateway.
type candidate struct {
	addr     string
	at       time.Time // see Origin.At
	from     sources
	critical bool
}

func (c candidate) origin() Origin { return Origin{c.from.names(), c.at} }

// path returns the path that leads to c.
func (c candidate) path() wanfed.Path {
	p := wanfed.Path{Addr: c.addr, Via: ViaRemoteGateway}
	switch {
	case c.from&fromHeartbeat != 0:
		p.Via, p.Local = ViaLocalGateway, true
	case c.from&fromConfig != 0:
		p.Via = ViaConfigured
	case c.from&fromCache != 0:
		p.Via, p.Rank = ViaCached, wanfed.RankCached
	case c.from&fromReport != 0:
		p.Via, p.Rank = ViaUnconfirmed, wanfed.RankUnconfirmed
	}
	if c.critical {
		p.Rank = wanfed.RankCritical
	}
	return p
}

// candidates is a list in order of preference, without duplicates.
type candidates []candidate

func (cs candidates) find(addr string) int {
	return slices.IndexFunc(cs, func(c candidate) bool { return c.addr == addr })
}

// add appends addr. If addr is present, add only adds a source.
func (cs candidates) add(addr string, critical bool, from sources, at time.Time) candidates {
	i := cs.find(addr)
	if i < 0 {
		return append(cs, candidate{addr, at, from, critical})
	}
	cs[i].from |= from
	if !cs[i].at.IsZero() && (at.IsZero() || at.After(cs[i].at)) {
		cs[i].at = at
	}
	return cs
}

func (cs candidates) addrs() []string {
	if len(cs) == 0 {
		return nil
	}
	out := make([]string, len(cs))
	for i, c := range cs {
		out[i] = c.addr
	}
	return out
}

// candidatesOf returns the addresses of gateways, healthy gateways first, then
// by node. It includes critical gateways, because a health check may be wrong.
// tag selects the LAN or the WAN address.
func candidatesOf(gs []*pb.MeshGateway, tag string, from sources, at time.Time) (cs candidates) {
	gs = slices.Clone(gs)
	slices.SortStableFunc(gs, byNode)
	for _, critical := range []bool{false, true} {
		for _, g := range gs {
			if addr := catalog.TaggedAddr(g, tag); addr != "" && critical != catalog.Healthy(g) {
				cs = cs.add(addr, critical, from, at)
			}
		}
	}
	return cs
}

// stateGateways contains the gateway addresses of a federation state. It is
// immutable.
type stateGateways struct {
	dc         string
	group      string     // id of the Raft group, or ""
	candidates candidates // in the order of candidatesOf
}

func gatewaysOf(s *pb.FederationState) *stateGateways {
	at := s.GetUpdatedAt().AsTime()
	return &stateGateways{s.Datacenter, s.GroupId,
		slices.Clip(candidatesOf(s.MeshGateways, catalog.TagWAN, fromState, at))}
}

// inputs are the inputs of compute.
type inputs struct {
	states  []*stateGateways
	local   []*pb.MeshGateway   // gateways of this datacenter
	servers map[string]string   // host:port of the alive servers of this datacenter, by node
	tagged  map[string][]string // addresses in gateway tags, by datacenter
	reports map[string][]string // result of lastResort, by datacenter
	cache   addressCache
}

// entry contains the known addresses of one datacenter and the resulting paths.
// It is immutable. A change of one datacenter replaces only its own entry.
type entry struct {
	// inputs
	state  *stateGateways // nil: the datacenter has no federation state
	tagged []string       // addresses in gateway tags
	report []string       // result of lastResort
	local  candidates     // local gateways
	own    []ownAddr      // addresses of local gateways and servers, sorted

	// results
	remote candidates // remote gateways: named addresses, then cached addresses
	named  []string   // addresses of remote from sources other than the cache
	unused []UnusedAddress
	paths  []wanfed.Path
	snap   *pb.SnapshotDatacenter
}

// computed is the result of compute.
type computed struct {
	entries map[string]*entry // by datacenter
	same    bool              // no entry has changed
}

// compute returns the entries for the inputs in. It reuses the entries in
// before whose inputs have not changed.
func compute(cfg AddressBookUpdaterConfig, in inputs, before map[string]*entry) computed {
	c := computed{entries: make(map[string]*entry, len(before)), same: true}
	local := candidatesOf(in.local, catalog.TagLAN, fromHeartbeat, time.Time{})
	own := ownAddrs(in)
	add := func(dc string, state *stateGateways) {
		e := before[dc]
		if e == nil || e.state != state || !slices.Equal(e.tagged, in.tagged[dc]) ||
			!slices.Equal(e.report, in.reports[dc]) || !slices.Equal(e.local, local) ||
			!slices.Equal(e.own, own) || !in.cache.matches(dc, e) {
			e, c.same = newEntry(cfg, dc, state, in, local, own), false
		}
		c.entries[dc] = e
	}
	for _, s := range in.states {
		if s.dc != cfg.DC {
			add(s.dc, s)
		}
	}
	for dc := range in.tagged {
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

// newEntry computes the entry of dc. The sources of addresses, in the order of
// their precedence, are the gateway tags, the federation state, the
// configuration, the cache and lastResort. Addresses in own belong to this datacenter and
// are not used. Addresses that are not isRemote are not used either, except those
// that this datacenter configured or that worked.
func newEntry(
	cfg AddressBookUpdaterConfig, dc string, state *stateGateways, in inputs, local candidates, own []ownAddr,
) *entry {
	e := &entry{state: state, tagged: in.tagged[dc], report: in.reports[dc], local: local, own: own}
	for _, addr := range e.tagged {
		if isRemote(addr, own) {
			e.remote = e.remote.add(addr, false, fromGossip, time.Time{})
		}
	}
	if state != nil {
		for _, c := range state.candidates {
			if isRemote(c.addr, own) {
				e.remote = e.remote.add(c.addr, c.critical, c.from, c.at)
			}
		}
	}
	if dc == cfg.PrimaryDC {
		for _, addr := range cfg.PrimaryGateways {
			e.remote = e.remote.add(addr, false, fromConfig, time.Time{})
		}
	}
	e.remote = slices.DeleteFunc(e.remote, func(c candidate) bool {
		holder := holderOf(own, c.addr)
		if holder != "" {
			e.unused = append(e.unused, UnusedAddress{c.addr, holder})
		}
		return holder != ""
	})
	if len(e.unused) > 0 && cfg.Logger != nil {
		cfg.Logger.Warn("addresses of a datacenter are not used: local gateways or servers have them; "+
			"check the WAN addresses of its gateways", "state_dc", dc, "count", len(e.unused),
			"addr", e.unused[0].Addr, "node", e.unused[0].Holder)
	}
	e.named = e.remote.addrs()
	current := slices.IndexFunc(e.remote, func(c candidate) bool { return c.critical })
	if current < 0 {
		current = len(e.remote)
	}
	for _, a := range in.cache.byUse(dc) {
		if !slices.Contains(e.named, a.addr) && holderOf(own, a.addr) == "" {
			e.remote = e.remote.add(a.addr, false, fromCache, a.lastUse())
		}
	}
	e.remote = slices.Clip(e.remote)
	all := e.all()
	if len(all) == 0 {
		return e
	}
	e.paths = make([]wanfed.Path, 0, len(local)+len(all))
	for _, c := range local {
		e.paths = append(e.paths, c.path())
	}
	e.snap = &pb.SnapshotDatacenter{Name: dc, Gateways: all.addrs(), Current: uint32(current)}
	for i, c := range all {
		p := c.path()
		p.Refuse = e.refuse(c)
		e.paths = append(e.paths, p)
		if p.Refuse != 0 {
			e.snap.Refuse = append(e.snap.Refuse, make([]uint32, i+1-len(e.snap.Refuse))...)
			e.snap.Refuse[i] = uint32(p.Refuse)
		}
	}
	return e
}

// all returns remote and the addresses in report.
func (e *entry) all() candidates {
	all := slices.Clip(e.remote)
	for _, addr := range e.report {
		if all.find(addr) < 0 {
			all = append(all, candidate{addr: addr, from: fromReport})
		}
	}
	return all
}

// isRemote reports whether an address can be that of a gateway of another
// datacenter. Otherwise, another datacenter could make this one dial its own
// machines. Addresses of a class that this datacenter uses itself are accepted,
// for a federation on one machine or in one segment.
func isRemote(addr string, own []ownAddr) bool { return netaddr.HostClass(addr)&refused(own) == 0 }

// refused returns the kinds of addresses that are not those of another datacenter.
func refused(own []ownAddr) netaddr.Class {
	class := netaddr.Loopback | netaddr.LinkLocal | netaddr.Other
	for _, o := range own {
		class &^= netaddr.HostClass(o.addr) & (netaddr.Loopback | netaddr.LinkLocal)
	}
	return class
}

// refuse returns the kinds of addresses to which the name of c must not resolve. A
// name that worked is checked too: its owner can change its addresses.
func (e *entry) refuse(c candidate) netaddr.Class {
	if c.from&(fromConfig|fromHeartbeat) != 0 || !netaddr.IsName(c.addr) {
		return 0
	}
	return refused(e.own)
}

// UnusedAddress is an address of another datacenter that is not used, because a
// local gateway or server has the same address.
type UnusedAddress struct {
	Addr   string // host:port
	Holder string // "gateway gw1" or "server srv1"
}

// ownAddr is an address of a local gateway or server.
type ownAddr struct{ addr, holder string }

// ownAddrs returns the addresses of local gateways and servers, sorted. A dial to
// such an address of another datacenter would not leave this datacenter, and the
// local gateways would forward it in circles.
func ownAddrs(in inputs) []ownAddr {
	var own []ownAddr
	for node, addr := range in.servers {
		own = append(own, ownAddr{addr, "server " + node})
	}
	for _, g := range in.local {
		for _, tag := range []string{catalog.TagLAN, catalog.TagWAN} {
			if addr := catalog.TaggedAddr(g, tag); addr != "" {
				own = append(own, ownAddr{addr, "gateway " + g.GetNode().GetNode()})
			}
		}
	}
	slices.SortFunc(own, func(a, b ownAddr) int {
		return cmp.Or(cmp.Compare(a.addr, b.addr), cmp.Compare(a.holder, b.holder))
	})
	return own
}

// holderOf returns the holder of an address, or "" if own does not have it.
func holderOf(own []ownAddr, addr string) string {
	i, found := slices.BinarySearchFunc(own, addr, func(o ownAddr, addr string) int { return cmp.Compare(o.addr, addr) })
	if !found {
		return ""
	}
	return own[i].holder
}

// origins returns the origin of each path, by address.
func (e *entry) origins() map[string]Origin {
	if e == nil || len(e.paths) == 0 {
		return nil
	}
	out := make(map[string]Origin, len(e.paths))
	for _, c := range slices.Concat(e.all(), e.local) {
		out[c.addr] = c.origin()
	}
	return out
}

// addressBook returns the paths in the form for the dialer.
func (c computed) addressBook(servers map[string]string) *wanfed.AddressBook {
	book := &wanfed.AddressBook{Servers: servers, Paths: make(map[string][]wanfed.Path, len(c.entries))}
	for dc, e := range c.entries {
		if len(e.paths) > 0 {
			book.Paths[dc] = e.paths
		}
	}
	return book
}

// snapshot returns the addresses in the form for the local gateways.
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

func byNode(a, b *pb.MeshGateway) int {
	return cmp.Or(cmp.Compare(a.GetNode().GetNode(), b.GetNode().GetNode()),
		cmp.Compare(a.GetService().GetId(), b.GetService().GetId()))
}
