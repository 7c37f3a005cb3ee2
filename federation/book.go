// SPDX-License-Identifier: MPL-2.0

package federation

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"sync"
	"time"

	"google.golang.org/protobuf/proto"

	"github.com/wanfed/wanfed/api/pb"
	"github.com/wanfed/wanfed/catalog"
	"github.com/wanfed/wanfed/pool"
	"github.com/wanfed/wanfed/resource"
	"github.com/wanfed/wanfed/wanfed"
)

// AddressBookConfig configures an AddressBook.
type AddressBookConfig struct {
	DC, PrimaryDC string
	Domain        string
	// PrimaryGateways are the configured addresses; none in the primary.
	PrimaryGateways []string
	Backend         resource.Backend
	LAN, WAN        *pool.Pool
	// Ready is closed when Backend has caught up with its datacenter after a start. Until then the book grows, but is not
	// given to gateways: they would forget what they knew.
	Ready <-chan struct{}
	// File keeps the addresses that were ever known, for the next start. Required.
	File string
	// Book is written by this AddressBook alone.
	Book   *wanfed.Book
	Logger *slog.Logger
}

// AddressBook computes how every datacenter is reached and publishes it.
type AddressBook struct {
	cfg AddressBookConfig
	old remembered // only publish uses it, which is called by one goroutine at a time

	mu       sync.Mutex
	snapshot *pb.GatewaySnapshot // what gateways must know; immutable once here; nil: not known yet
	changed  chan struct{}       // closed and replaced when snapshot changes
}

// NewAddressBook checks cfg, reads the file, and publishes what is known before anything runs: the configured addresses, and
// those of earlier runs.
func NewAddressBook(cfg AddressBookConfig) (*AddressBook, error) {
	if cfg.DC == "" || cfg.PrimaryDC == "" || cfg.Backend == nil || cfg.LAN == nil || cfg.WAN == nil || cfg.Ready == nil || cfg.File == "" || cfg.Book == nil || cfg.Logger == nil {
		return nil, errors.New("federation: DC, PrimaryDC, Backend, LAN, WAN, Ready, File, Book and Logger are required")
	}
	a := &AddressBook{cfg: cfg, changed: make(chan struct{})}
	var err error
	if a.old, err = loadRemembered(cfg.File); err != nil {
		cfg.Logger.Warn("addresses of earlier runs are not used", "err", err)
	}
	a.publish(facts{}, false)
	return a, nil
}

// facts are the inputs of the book, read at one moment.
type facts struct {
	states  []*pb.FederationState
	own     []*pb.MeshGateway
	servers map[string]string // node → host:port of alive servers of this datacenter
	hints   map[string][]string
	old     remembered
}

// Run keeps the book true until ctx ends. It waits for changes and reads everything anew after each; several changes at
// once cost one reading.
func (a *AddressBook) Run(ctx context.Context) error {
	wake := make(chan struct{}, 1)
	var wg sync.WaitGroup
	defer wg.Wait()
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	for _, typ := range []*pb.Type{StateType, catalog.NodeType, catalog.ServiceType, catalog.CheckType} {
		wg.Go(func() { resource.Notify(ctx, a.cfg.Backend, typ, wake) })
	}
	ready := a.cfg.Ready
	for {
		lan, wan := a.cfg.LAN.Changed(), a.cfg.WAN.Changed()
		f, err := a.read(ctx)
		if err != nil && ctx.Err() == nil {
			return fmt.Errorf("address book: %w", err)
		}
		if err == nil {
			a.publish(f, ready == nil)
		}
		select {
		case <-ctx.Done():
			return nil
		case <-wake:
		case <-lan:
		case <-wan:
		case <-ready:
			ready = nil // and read once more
		}
	}
}

func (a *AddressBook) read(ctx context.Context) (f facts, err error) {
	if f.states, _, err = States(ctx, a.cfg.Backend); err != nil {
		return f, err
	}
	if f.own, err = catalog.List(ctx, a.cfg.Backend); err != nil {
		return f, err
	}
	f.servers = map[string]string{}
	for _, m := range a.cfg.LAN.Members() {
		if m.Alive() {
			f.servers[m.Name] = m.Addr
		}
	}
	f.hints = hints(a.cfg.WAN.Members(), a.cfg.DC, a.cfg.PrimaryDC, f.states)
	return f, nil
}

// publish stores what follows from f; for gateways too when it is whole.
func (a *AddressBook) publish(f facts, whole bool) {
	f.old = a.old
	routes, snap, known := compute(a.cfg, f)
	if a.old.note(known, time.Now()) {
		if err := a.old.save(a.cfg.File); err != nil {
			a.cfg.Logger.Warn("known addresses are not kept for the next start", "err", err)
		}
	}
	if old := a.cfg.Book.Load(); !sameRoutes(old, routes) {
		a.cfg.Book.Store(routes)
		a.cfg.Logger.Debug("address book changed", "datacenters", len(routes.Hops), "servers", len(routes.Servers))
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	if !whole || a.snapshot != nil && proto.Equal(a.snapshot, snap) {
		return
	}
	a.snapshot = snap
	close(a.changed)
	a.changed = make(chan struct{})
}

// Snapshot returns what gateways must know, nil as long as this server does not know it itself, and a channel that is closed
// when there is a newer one.
func (a *AddressBook) Snapshot() (*pb.GatewaySnapshot, <-chan struct{}) {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.snapshot, a.changed
}

func sameRoutes(a, b *wanfed.Routes) bool {
	return maps.Equal(a.Servers, b.Servers) && maps.EqualFunc(a.Hops, b.Hops, slices.Equal)
}

// Words for wanfed.Hop.Via.
const (
	ViaOwn        = "own gateway"
	ViaRemote     = "remote gateway"
	ViaConfigured = "configured address"
	ViaRemembered = "remembered address"
)

// compute turns facts into the two published values, and gives the addresses that somebody names now. It is pure.
func compute(cfg AddressBookConfig, f facts) (_ *wanfed.Routes, _ *pb.GatewaySnapshot, known map[string][]string) {
	far := map[string][]string{} // datacenter → WAN addresses, healthy first
	if cfg.DC != cfg.PrimaryDC {
		far[cfg.PrimaryDC] = nil
	}
	for _, s := range f.states {
		if s.Datacenter != cfg.DC {
			far[s.Datacenter] = addrs(s.MeshGateways, catalog.TagWAN)
		}
	}
	for dc, told := range f.hints {
		far[dc] = union(slices.Clone(told), far[dc]) // as fresh as gossip is: the record may be older, and stays behind
	}
	if cfg.DC != cfg.PrimaryDC {
		far[cfg.PrimaryDC] = union(far[cfg.PrimaryDC], cfg.PrimaryGateways)
	}
	known = maps.Clone(far)
	for dc := range far {
		far[dc] = union(slices.Clone(far[dc]), f.old.of(dc))
	}
	own := addrs(f.own, catalog.TagLAN)

	routes := &wanfed.Routes{Servers: f.servers, Hops: map[string][]wanfed.Hop{}}
	snap := &pb.GatewaySnapshot{Datacenter: cfg.DC, Domain: cfg.Domain}
	for _, dc := range slices.Sorted(maps.Keys(far)) {
		var hops []wanfed.Hop
		for _, addr := range own {
			hops = append(hops, wanfed.Hop{Addr: addr, Via: ViaOwn})
		}
		for _, addr := range far[dc] {
			via := ViaRemote
			switch {
			case dc == cfg.PrimaryDC && slices.Contains(cfg.PrimaryGateways, addr):
				via = ViaConfigured
			case !slices.Contains(known[dc], addr):
				via = ViaRemembered
			}
			hops = append(hops, wanfed.Hop{Addr: addr, Via: via})
		}
		if len(far[dc]) > 0 {
			routes.Hops[dc] = hops
			snap.Datacenters = append(snap.Datacenters, &pb.SnapshotDatacenter{Name: dc, Gateways: far[dc]})
		}
	}
	for _, node := range slices.Sorted(maps.Keys(f.servers)) {
		snap.Servers = append(snap.Servers, &pb.SnapshotServer{Node: node, Address: f.servers[node]})
	}
	return routes, snap, known
}

// addrs lists the addresses of gateways, healthy ones first, each once. Critical ones stay at the end: a health check may
// be wrong, and the last known address is never dropped.
func addrs(gs []*pb.MeshGateway, tag string) []string {
	gs = slices.Clone(gs)
	slices.SortStableFunc(gs, func(a, b *pb.MeshGateway) int {
		return cmp.Or(-compareBool(catalog.Healthy(a), catalog.Healthy(b)), byNode(a, b))
	})
	var out []string
	for _, g := range gs {
		if addr := catalog.TaggedAddr(g, tag); addr != "" {
			out = union(out, []string{addr})
		}
	}
	return out
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
