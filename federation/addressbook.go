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
	"github.com/wanfed/wanfed/internal/backoff"
	"github.com/wanfed/wanfed/internal/broadcast"
	"github.com/wanfed/wanfed/resource"
	"github.com/wanfed/wanfed/wanfed"
)

// AddressBookUpdaterConfig configures an AddressBookUpdater. All fields except
// Domain, PrimaryGateways, Paths, Replaced and Deleted are required.
type AddressBookUpdaterConfig struct {
	DC, PrimaryDC string // the local datacenter and the configured primary
	Domain        string // of the names in certificates
	// PrimaryGateways are the configured addresses of the primary. The primary
	// itself does not use them.
	PrimaryGateways []string
	Backend         resource.Backend
	LAN, WAN        *gossip.Pool
	// Ready is closed when Backend has caught up with its datacenter after a
	// start. Until then gateways receive no snapshot, because they would drop
	// the routes that an incomplete snapshot lacks.
	Ready <-chan struct{}
	// File is the path of the address cache.
	File string
	// Book receives each address book. Only this AddressBookUpdater writes it.
	Book *wanfed.SharedAddressBook
	// Gateways is called with the registered gateways of the local datacenter
	// each time they were read after Ready. It must not block. Default: not
	// called.
	Gateways func([]*pb.MeshGateway)
	// Paths returns the results of dials and probes. The cache keeps the
	// addresses of successful dials and probes. Unconfirmed addresses of
	// datacenters without a working path are used. Default: no results.
	Paths func() []wanfed.PathStatus
	// Replaced is called when another Raft group has taken the name of a
	// datacenter, and the earlier addresses of the datacenter were removed.
	// Default: not called.
	Replaced func(ctx context.Context, dc string)
	// Deleted reports whether the cached addresses of a datacenter that has no
	// path are removed: see Deletions.Final. Default: they are kept.
	Deleted func(dc string) bool
	Logger  *slog.Logger
}

// AddressBookUpdater computes and publishes the paths to every datacenter.
type AddressBookUpdater struct {
	cfg AddressBookUpdaterConfig

	// Only the goroutine of NewAddressBookUpdater and then of Run uses the
	// fields up to lastResort.
	cache         addressCache
	cacheChanged  bool      // the cache differs from the file
	saved         time.Time // time of the last write of the file
	statesChanged bool      // the federation states must be read again
	states        []*stateGateways
	decoded       map[string]decodedState // result of the last read, by datacenter
	tags          tagReader
	lastResort    *lastResort

	changed broadcast.Broadcast // notified after each change of snapshot

	mu       sync.Mutex
	entries  map[string]*entry   // by datacenter; immutable
	snapshot *pb.GatewaySnapshot // immutable; nil before the first snapshot
}

// decodedState is a federation state and the resource that contains the state.
type decodedState struct {
	from  *pb.Resource // immutable
	state *stateGateways
}

// NewAddressBookUpdater checks cfg and reads the address cache. It publishes
// the configured and the cached addresses.
func NewAddressBookUpdater(cfg AddressBookUpdaterConfig) (*AddressBookUpdater, error) {
	if cfg.DC == "" || cfg.PrimaryDC == "" || cfg.Backend == nil || cfg.LAN == nil || cfg.WAN == nil ||
		cfg.Ready == nil || cfg.File == "" || cfg.Book == nil || cfg.Logger == nil {
		return nil, errors.New("federation: a required field of AddressBookUpdaterConfig is missing")
	}
	u := &AddressBookUpdater{cfg: cfg, statesChanged: true, decoded: map[string]decodedState{}, lastResort: newLastResort(cfg)}
	var err error
	if u.cache, err = loadAddressCache(cfg.File); err != nil {
		cfg.Logger.Warn("cannot use the address cache", "err", err)
	}
	u.publish(inputs{}, false)
	return u, nil
}

// bookEvents are the events that cause a new computation of the address book.
type bookEvents struct {
	states   chan struct{} // capacity 1: federation states have changed
	gateways chan struct{} // capacity 1: local gateways have changed
	lan, wan <-chan struct{}
	ready    <-chan struct{} // AddressBookUpdaterConfig.Ready; nil once received
}

// Run computes the address book after each change of its inputs, until ctx
// ends. Several changes at the same time cost one computation.
func (u *AddressBookUpdater) Run(ctx context.Context) error {
	var wg sync.WaitGroup
	defer wg.Wait()
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	ev := &bookEvents{states: make(chan struct{}, 1), gateways: make(chan struct{}, 1), ready: u.cfg.Ready}
	wg.Go(func() { resource.Notify(ctx, u.cfg.Backend, resource.Query{Type: StateType}, ev.states) })
	for _, typ := range []*pb.Type{catalog.NodeType, catalog.ServiceType, catalog.CheckType} {
		wg.Go(func() { resource.Notify(ctx, u.cfg.Backend, resource.Query{Type: typ}, ev.gateways) })
	}
	defer u.saveCache()
	defer u.updateCache()
	for ctx.Err() == nil {
		ev.lan, ev.wan = u.cfg.LAN.Changed(), u.cfg.WAN.Changed()
		in, err := u.read(ctx)
		if err != nil && ctx.Err() == nil {
			return fmt.Errorf("address book: %w", err)
		}
		if err == nil {
			u.publish(in, ev.ready == nil)
			if ev.ready == nil && u.cfg.Gateways != nil {
				u.cfg.Gateways(in.local)
			}
		}
		next := time.Now().Add(updateInterval(len(in.states)))
		u.waitEvent(ctx, ev)
		backoff.Sleep(ctx, time.Until(next), nil)
		select {
		case <-ev.states: // an event during the Sleep
			u.statesChanged = true
		default:
		}
	}
	return nil
}

// waitEvent blocks until an event, until the cache must be updated or saved, until
// the result of lastResort changes, or until ctx ends.
func (u *AddressBookUpdater) waitEvent(ctx context.Context, ev *bookEvents) {
	timeout := cacheUpdateInterval
	if u.cacheChanged {
		timeout = min(timeout, time.Until(u.saved.Add(saveInterval(len(u.cache)))))
	}
	timer := time.NewTimer(timeout)
	defer timer.Stop()
	check := time.NewTicker(lastResortCheck)
	defer check.Stop()
	for {
		select {
		case <-ctx.Done():
		case <-ev.states:
			u.statesChanged = true
		case <-ev.gateways:
		case <-ev.lan:
		case <-ev.wan:
		case <-ev.ready:
			ev.ready = nil
		case <-timer.C: // the next publish updates and saves the cache
		case <-check.C:
			if !u.lastResort.update(u.entries, time.Now()) { // only this goroutine writes entries
				continue
			}
		}
		return
	}
}

// updateInterval returns the minimum time between two computations. When many
// datacenters start, both the number of changes and the cost of a change (about 6 us
// per datacenter, and each link wakes) are proportional to the number of datacenters.
func updateInterval(datacenters int) time.Duration {
	return min(time.Duration(datacenters*datacenters)*100*time.Microsecond, time.Second)
}

// read reads the inputs of compute except the cache.
func (u *AddressBookUpdater) read(ctx context.Context) (in inputs, err error) {
	if in.states, err = u.readStates(ctx); err != nil {
		return in, err
	}
	if in.local, err = catalog.ListGateways(ctx, u.cfg.Backend); err != nil {
		return in, err
	}
	in.servers = map[string]string{}
	for _, m := range u.cfg.LAN.Members() {
		if m.Alive() {
			in.servers[m.Name] = m.Addr
		}
	}
	state := func(dc string) *stateGateways { return u.decoded[dc].state }
	in.tagged = u.tags.collect(u.cfg.WAN.Members(), u.cfg.DC, u.cfg.PrimaryDC, state)
	in.reports = u.lastResort.addrs()
	return in, nil
}

// readStates decodes the federation states that have changed since the last
// call.
func (u *AddressBookUpdater) readStates(ctx context.Context) ([]*stateGateways, error) {
	if !u.statesChanged {
		return u.states, nil
	}
	rs, _, err := u.cfg.Backend.List(ctx, resource.Eventual, resource.Query{Type: StateType})
	if err != nil {
		return nil, err
	}
	states, decoded := make([]*stateGateways, 0, len(rs)), make(map[string]decodedState, len(rs))
	for _, r := range rs {
		name := r.GetId().GetName()
		d := u.decoded[name]
		if d.from != r {
			s, err := resource.Decode[*pb.FederationState](r)
			if err != nil {
				return nil, fmt.Errorf("federation state %s: %w", name, err)
			}
			old := d.state
			d = decodedState{r, gatewaysOf(s)}
			if old != nil && old.group != "" && old.group != d.state.group {
				u.replaced(ctx, name, old.group, d.state.group)
			}
		}
		decoded[name] = d
		states = append(states, d.state)
	}
	u.states, u.decoded, u.statesChanged = states, decoded, false
	return states, nil
}

// replaced removes the known addresses of a datacenter whose name another Raft
// group has taken.
func (u *AddressBookUpdater) replaced(ctx context.Context, dc, old, group string) {
	u.cfg.Logger.Warn("another datacenter has taken the name", "state_dc", dc, "group", group, "previous_group", old)
	delete(u.cache, dc)
	u.cacheChanged = true
	u.mu.Lock()
	entries := maps.Clone(u.entries)
	delete(entries, dc)
	u.entries = entries
	u.mu.Unlock()
	if u.cfg.Replaced != nil {
		u.cfg.Replaced(ctx, dc)
	}
}

// publish computes and publishes the address book. If ready is set, it also
// publishes the snapshot for gateways.
func (u *AddressBookUpdater) publish(in inputs, ready bool) {
	in.cache = u.cache
	c := compute(u.cfg, in, u.entries)
	u.mu.Lock()
	u.entries = c.entries
	u.mu.Unlock()
	defer u.updateCache() // after the paths are published: a write to a busy disk takes long
	old := u.cfg.Book.Load()
	sameServers := maps.Equal(old.Servers, in.servers)
	if !c.same || !sameServers {
		book := c.addressBook(in.servers)
		if !sameServers || !maps.EqualFunc(old.Paths, book.Paths, slices.Equal) {
			u.cfg.Book.Store(book)
			u.cfg.Logger.Debug("address book changed", "datacenters", len(book.Paths), "servers", len(book.Servers))
		}
	}
	if !ready || u.snapshot != nil && c.same && sameServers { // only this goroutine writes snapshot
		return
	}
	snapshot := c.snapshot(u.cfg, in.servers)
	if u.snapshot != nil && sameSnapshot(u.snapshot, snapshot) {
		return
	}
	u.mu.Lock()
	u.snapshot = snapshot
	u.mu.Unlock()
	u.changed.Notify()
}

// sameSnapshot is a fast proto.Equal for two snapshots that share most parts.
func sameSnapshot(a, b *pb.GatewaySnapshot) bool {
	return slices.EqualFunc(a.Datacenters, b.Datacenters,
		func(a, b *pb.SnapshotDatacenter) bool { return a == b || proto.Equal(a, b) }) &&
		slices.EqualFunc(a.Servers, b.Servers, func(a, b *pb.SnapshotServer) bool { return proto.Equal(a, b) })
}

// cacheUpdateInterval is the maximum time between two updates of the cache. An
// update records the addresses of successful dials.
const cacheUpdateInterval = time.Minute

// saveInterval returns the minimum time between two writes of the file.
// datacenters is the number of datacenters in the cache.
func saveInterval(datacenters int) time.Duration {
	return min(time.Duration(datacenters)*50*time.Millisecond, 10*time.Second)
}

// updateCache records the known addresses and the addresses of successful
// dials, and removes those of deleted datacenters. It saves the cache if saveInterval has passed since the last write.
func (u *AddressBookUpdater) updateCache() {
	now := time.Now()
	u.cacheChanged = u.cache.record(u.entries, workedAddrs(u.cfg), now) || u.cacheChanged
	for dc := range u.cache {
		if u.cfg.Deleted != nil && u.entries[dc] == nil && u.cfg.Deleted(dc) {
			delete(u.cache, dc)
			u.cacheChanged = true
		}
	}
	if now.Sub(u.saved) >= saveInterval(len(u.cache)) {
		u.saveCache()
	}
}

// saveCache writes the file if the cache has changed.
func (u *AddressBookUpdater) saveCache() {
	if !u.cacheChanged {
		return
	}
	u.cacheChanged, u.saved = false, time.Now()
	if err := u.cache.save(u.cfg.File, u.saved); err != nil {
		u.cfg.Logger.Warn("cannot save the address cache", "err", err)
	}
}

// workedAddrs returns the time of the last successful dial of remote addresses,
// by datacenter and address. For a DNS name, it also returns the resolved
// address, which is needed when the name cannot be resolved.
func workedAddrs(cfg AddressBookUpdaterConfig) map[string]map[string]time.Time {
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

// Origins returns the origins of the paths to dc, by address.
func (u *AddressBookUpdater) Origins(dc string) map[string]Origin {
	u.mu.Lock()
	defer u.mu.Unlock()
	return u.entries[dc].origins()
}

// Unused returns the addresses of dc that are not used, because local gateways
// or servers have them. The caller must not change the result.
func (u *AddressBookUpdater) Unused(dc string) []UnusedAddress {
	u.mu.Lock()
	defer u.mu.Unlock()
	if e := u.entries[dc]; e != nil {
		return e.unused
	}
	return nil
}

// Snapshot returns the current snapshot for gateways. It returns nil before the
// first snapshot. The channel is closed when there is a newer snapshot.
func (u *AddressBookUpdater) Snapshot() (*pb.GatewaySnapshot, <-chan struct{}) {
	changed := u.changed.Wait()
	u.mu.Lock()
	defer u.mu.Unlock()
	return u.snapshot, changed
}
