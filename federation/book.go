// SPDX-License-Identifier: MPL-2.0

package federation

import (
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
	"github.com/wanfed/wanfed/gossip"
	"github.com/wanfed/wanfed/resource"
	"github.com/wanfed/wanfed/wanfed"
)

// AddressBookUpdaterConfig configures an AddressBookUpdater.
type AddressBookUpdaterConfig struct {
	DC, PrimaryDC string
	Domain        string
	// PrimaryGateways are the configured addresses. The primary does not use them.
	PrimaryGateways []string
	Backend         resource.Backend
	LAN, WAN        *gossip.Pool
	// Ready is closed when Backend has caught up with its datacenter after a start. Until then the book grows, but is not
	// given to gateways: they would forget what they knew.
	Ready <-chan struct{}
	// File keeps the addresses that were ever known, for the next start. Required.
	File string
	// Book is written by this AddressBookUpdater alone.
	Book *wanfed.SharedAddressBook
	// Paths tells what dials and probes found out: an address that worked is not forgotten for newer ones. May be nil.
	Paths  func() []wanfed.PathStatus
	Logger *slog.Logger
}

// AddressBookUpdater computes how every datacenter is reached and publishes it.
type AddressBookUpdater struct {
	cfg AddressBookUpdaterConfig
	// Only read, publish and remember use these, which are called by one goroutine at a time.
	old     remembered
	unsaved bool      // old differs from the file
	saved   time.Time // when it was last written
	stale   bool      // states are to be read anew
	states  []*told
	decoded map[string]decoded // of the last reading, by name
	hinted  hinted

	mu       sync.Mutex
	entries  map[string]*entry   // by datacenter; immutable once here
	snapshot *pb.GatewaySnapshot // what gateways must know; immutable once here; nil: not known yet
	changed  chan struct{}       // closed and replaced when snapshot changes
}

// decoded is what a resource says. Resources are immutable.
type decoded struct {
	from *pb.Resource
	told *told
}

// NewAddressBookUpdater checks cfg, reads the file, and publishes what is known before anything runs: the configured addresses, and
// those of earlier runs.
func NewAddressBookUpdater(cfg AddressBookUpdaterConfig) (*AddressBookUpdater, error) {
	if cfg.DC == "" || cfg.PrimaryDC == "" || cfg.Backend == nil || cfg.LAN == nil || cfg.WAN == nil || cfg.Ready == nil || cfg.File == "" || cfg.Book == nil || cfg.Logger == nil {
		return nil, errors.New("federation: DC, PrimaryDC, Backend, LAN, WAN, Ready, File, Book and Logger are required")
	}
	a := &AddressBookUpdater{cfg: cfg, stale: true, decoded: map[string]decoded{}, changed: make(chan struct{})}
	var err error
	if a.old, err = loadRemembered(cfg.File); err != nil {
		cfg.Logger.Warn("addresses of earlier runs are not used", "err", err)
	}
	a.publish(facts{}, false)
	return a, nil
}

// Run keeps the book true until ctx ends. It waits for changes and looks at everything anew after each; several changes at
// once cost one look.
func (a *AddressBookUpdater) Run(ctx context.Context) error {
	states, wake := make(chan struct{}, 1), make(chan struct{}, 1)
	var wg sync.WaitGroup
	defer wg.Wait()
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	wg.Go(func() { resource.Notify(ctx, a.cfg.Backend, resource.Query{Type: StateType}, states) })
	for _, typ := range []*pb.Type{catalog.NodeType, catalog.ServiceType, catalog.CheckType} {
		wg.Go(func() { resource.Notify(ctx, a.cfg.Backend, resource.Query{Type: typ}, wake) })
	}
	ready := a.cfg.Ready
	remember := time.NewTicker(rememberEvery)
	defer remember.Stop()
	defer a.save()
	defer a.remember()
	for {
		lan, wan := a.cfg.LAN.Changed(), a.cfg.WAN.Changed()
		f, err := a.read(ctx)
		if err != nil && ctx.Err() == nil {
			return fmt.Errorf("address book: %w", err)
		}
		if err == nil {
			a.publish(f, ready == nil)
		}
		pause := time.NewTimer(pauseOf(len(f.states)))
		var save <-chan time.Time
		if a.unsaved {
			save = time.After(time.Until(a.saved.Add(saveEvery(len(a.old)))))
		}
		select {
		case <-ctx.Done():
			return nil
		case <-states:
			a.stale = true
		case <-wake:
		case <-save: // by publish
		case <-lan:
		case <-wan:
		case <-remember.C:
		case <-ready:
			ready = nil // and read once more
		}
		select {
		case <-pause.C: // over, as a rule
		case <-ctx.Done():
			return nil
		}
		select {
		case <-states: // came during the pause
			a.stale = true
		default:
		}
	}
}

// pauseOf is how long after a reading the next one comes at the earliest, in a federation of so many datacenters. A reading costs in
// proportion to them (some 6 us each), and so do the changes when many start at once; one change after a quiet time is read at once.
func pauseOf(datacenters int) time.Duration {
	return min(time.Duration(datacenters)*time.Millisecond, time.Second)
}

func (a *AddressBookUpdater) read(ctx context.Context) (f facts, err error) {
	if f.states, err = a.readStates(ctx); err != nil {
		return f, err
	}
	if f.own, err = catalog.ListGateways(ctx, a.cfg.Backend); err != nil {
		return f, err
	}
	f.servers = map[string]string{}
	for _, m := range a.cfg.LAN.Members() {
		if m.Alive() {
			f.servers[m.Name] = m.Addr
		}
	}
	f.hints = a.hinted.collect(a.cfg.WAN.Members(), a.cfg.DC, a.cfg.PrimaryDC, func(dc string) bool { return a.decoded[dc].told != nil })
	return f, nil
}

// readStates reads the federation states that have changed since the last call.
func (a *AddressBookUpdater) readStates(ctx context.Context) ([]*told, error) {
	if !a.stale {
		return a.states, nil
	}
	rs, _, err := a.cfg.Backend.List(ctx, resource.Eventual, resource.Query{Type: StateType})
	if err != nil {
		return nil, err
	}
	states := make([]*told, 0, len(rs))
	for _, r := range rs {
		name := r.GetId().GetName()
		d := a.decoded[name]
		if d.from != r {
			s, err := resource.Decode[*pb.FederationState](r)
			if err != nil {
				return nil, fmt.Errorf("federation state %s: %w", name, err)
			}
			d = decoded{r, toldBy(s)}
			a.decoded[name] = d
		}
		states = append(states, d.told)
	}
	if len(a.decoded) > len(states) { // some are gone
		clear(a.decoded)
		for i, r := range rs {
			a.decoded[r.GetId().GetName()] = decoded{r, states[i]}
		}
	}
	a.states, a.stale = states, false
	return states, nil
}

// publish stores what follows from f; for gateways too when it is whole.
func (a *AddressBookUpdater) publish(f facts, whole bool) {
	f.old = a.old
	c := compute(a.cfg, f, a.entries)
	a.mu.Lock()
	a.entries = c.entries
	a.mu.Unlock()
	a.remember()
	old := a.cfg.Book.Load()
	sameServers := maps.Equal(old.Servers, f.servers)
	if !c.same || !sameServers {
		if routes := c.routes(f.servers); !sameServers || !maps.EqualFunc(old.Paths, routes.Paths, slices.Equal) {
			a.cfg.Book.Store(routes)
			a.cfg.Logger.Debug("address book changed", "datacenters", len(routes.Paths), "servers", len(routes.Servers))
		}
	}
	if !whole || a.snapshot != nil && c.same && sameServers { // only this goroutine writes it
		return
	}
	snap := c.snapshot(a.cfg, f.servers)
	if a.snapshot != nil && sameSnapshot(a.snapshot, snap) {
		return
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	a.snapshot = snap
	close(a.changed)
	a.changed = make(chan struct{})
}

// sameSnapshot is proto.Equal for two snapshots of one server. Most parts of them are the same in memory.
func sameSnapshot(a, b *pb.GatewaySnapshot) bool {
	return slices.EqualFunc(a.Datacenters, b.Datacenters, func(a, b *pb.SnapshotDatacenter) bool { return a == b || proto.Equal(a, b) }) &&
		slices.EqualFunc(a.Servers, b.Servers, func(a, b *pb.SnapshotServer) bool { return proto.Equal(a, b) })
}

// rememberEvery is how often what worked is noted, besides at each change. It is also when the book is computed anew without
// a reason, which costs little.
const rememberEvery = time.Minute

// saveEvery is how often the file is written at most, with the addresses of so many datacenters: it is written whole.
func saveEvery(datacenters int) time.Duration {
	return min(time.Duration(datacenters)*10*time.Millisecond, 10*time.Second)
}

// remember notes which addresses are known and which of them worked, for the next start.
func (a *AddressBookUpdater) remember() {
	now := time.Now()
	a.unsaved = a.old.note(a.entries, worked(a.cfg), now) || a.unsaved
	if now.Sub(a.saved) >= saveEvery(len(a.old)) {
		a.save()
	}
}

// save writes the file, if it is to be.
func (a *AddressBookUpdater) save() {
	if !a.unsaved {
		return
	}
	a.unsaved, a.saved = false, time.Now()
	if err := a.old.save(a.cfg.File, a.saved); err != nil {
		a.cfg.Logger.Warn("known addresses are not kept for the next start", "err", err)
	}
}

// worked tells, by datacenter, which addresses of its gateways this server has dialed with success, and when last. Of a DNS
// name that is also the address behind it, so that a datacenter is found when the name cannot be resolved.
func worked(cfg AddressBookUpdaterConfig) map[string]map[string]time.Time {
	if cfg.Paths == nil {
		return nil
	}
	out := map[string]map[string]time.Time{}
	for _, p := range cfg.Paths() {
		if p.DC == cfg.DC || p.Local || p.LastSuccess.IsZero() {
			continue
		}
		if out[p.DC] == nil {
			out[p.DC] = map[string]time.Time{}
		}
		for _, addr := range []string{p.Addr, p.Remote} {
			if addr != "" && p.LastSuccess.After(out[p.DC][addr]) {
				out[p.DC][addr] = p.LastSuccess
			}
		}
	}
	return out
}

// Origins tells of the hops to dc where they are known from, by address.
func (a *AddressBookUpdater) Origins(dc string) map[string]Origin {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.entries[dc].origins()
}

// Snapshot returns what gateways must know, nil as long as this server does not know it itself, and a channel that is closed
// when there is a newer one.
func (a *AddressBookUpdater) Snapshot() (*pb.GatewaySnapshot, <-chan struct{}) {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.snapshot, a.changed
}
