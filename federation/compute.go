// SPDX-License-Identifier: MPL-2.0

package federation

import (
	"cmp"
	"slices"
	"time"

	"github.com/wanfed/wanfed/api/pb"
	"github.com/wanfed/wanfed/catalog"
	"github.com/wanfed/wanfed/wanfed"
)

// facts are the inputs of the book, read at one moment.
type facts struct {
	states  []*told
	own     []*pb.MeshGateway
	servers map[string]string // node → host:port of alive servers of this datacenter
	hints   map[string][]string
	old     remembered
}

// told is what a federation state says about where its datacenter is; immutable.
type told struct {
	dc     string
	at     time.Time
	places places // of its gateways, healthy ones first
}

// toldBy reads s.
func toldBy(s *pb.FederationState) *told {
	at := s.GetUpdatedAt().AsTime()
	return &told{dc: s.Datacenter, at: at, places: slices.Clip(placesOf(s.MeshGateways, catalog.TagWAN, fromState, at))}
}

// Origin says where the address of a hop is known from.
type Origin struct {
	Sources []string  // words that begin with Source
	At      time.Time // when the last of them said so; zero: it says so now
}

// Words for wanfed.Path.Via.
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

// sources are some of the words of Origin.Sources, in one byte: a book has a place for each gateway of the federation.
type sources uint8

const (
	fromHeartbeat sources = 1 << iota
	fromGossip
	fromState
	fromConfig
	fromMemory
)

// words lists the sources.
func (s sources) words() (out []string) {
	for i, word := range []string{SourceHeartbeat, SourceGossip, SourceState, SourceConfigured, SourceRemembered} {
		if s&(1<<i) != 0 {
			out = append(out, word)
		}
	}
	return out
}

// place is one address in the making of the book.
type place struct {
	addr     string
	at       time.Time // see Origin.At
	from     sources
	critical bool
}

func (p place) origin() Origin { return Origin{p.from.words(), p.at} }

// places are in order of preference, each address once.
type places []place

func (ps places) find(addr string) int {
	return slices.IndexFunc(ps, func(p place) bool { return p.addr == addr })
}

// add appends addr, or, when it is there, notes that one more source names it.
func (ps places) add(addr string, critical bool, from sources, at time.Time) places {
	i := ps.find(addr)
	if i < 0 {
		return append(ps, place{addr, at, from, critical})
	}
	ps[i].from |= from
	if !ps[i].at.IsZero() && (at.IsZero() || at.After(ps[i].at)) {
		ps[i].at = at
	}
	return ps
}

func (ps places) addrs() []string {
	if len(ps) == 0 {
		return nil
	}
	out := make([]string, len(ps))
	for i, p := range ps {
		out[i] = p.addr
	}
	return out
}

// hop makes a hop of p, which is no own gateway's.
func (p place) hop() wanfed.Path {
	h := wanfed.Path{Addr: p.addr, Via: ViaRemote}
	switch {
	case p.from&fromConfig != 0:
		h.Via = ViaConfigured
	case p.from&fromMemory != 0:
		h.Via, h.Rank = ViaRemembered, wanfed.RankCached
	}
	if p.critical {
		h.Rank = wanfed.RankCritical
	}
	return h
}

// addrs lists the addresses of gateways, healthy ones first, each once.
func addrs(gs []*pb.MeshGateway, tag string) []string {
	return placesOf(gs, tag, 0, time.Time{}).addrs()
}

// placesOf lists the addresses of gateways, healthy ones first. Critical ones stay at the end: a health check may be wrong, and
// the last known address is never dropped.
func placesOf(gs []*pb.MeshGateway, tag string, from sources, at time.Time) (ps places) {
	gs = slices.Clone(gs)
	slices.SortStableFunc(gs, func(a, b *pb.MeshGateway) int {
		return cmp.Or(-compareBool(catalog.Healthy(a), catalog.Healthy(b)), byNode(a, b))
	})
	for _, g := range gs {
		if addr := catalog.TaggedAddr(g, tag); addr != "" {
			ps = ps.add(addr, !catalog.Healthy(g), from, at)
		}
	}
	return ps
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
