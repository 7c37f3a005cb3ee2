// SPDX-License-Identifier: MPL-2.0

package proxycfg

import (
	"context"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/wanfed/wanfed/api"
	"github.com/wanfed/wanfed/internal/backoff"
	"github.com/wanfed/wanfed/internal/broadcast"
)

// buildInterval is the minimum time between two snapshots of a gateway. Changes
// during this time are coalesced. It is also the maximum delay of a change.
const buildInterval = 20 * time.Millisecond

// Manager builds the snapshots of registered gateways. Each gateway has one
// state machine, however many readers its snapshot has. The methods may be
// called from any goroutine.
type Manager struct {
	dc, domain string
	inputs     *Inputs
	changed    broadcast.Keyed[string] // by name, after a change of Snapshot

	mu       sync.Mutex
	machines map[string]*machine
	start    func(*machine) // idempotent; nil: Run does not run
	running  sync.WaitGroup
}

// machine is the state machine of one gateway. One goroutine runs it.
type machine struct {
	manager      *Manager
	registration Value[Registration]
	stop         context.CancelFunc // nil: not started
	snapshot     *Snapshot          // guarded by Manager.mu; nil: none is complete yet
}

// NewManager returns a Manager without gateways. dc and domain are those of the
// local datacenter.
func NewManager(dc, domain string, inputs *Inputs) *Manager {
	return &Manager{dc: dc, domain: domain, inputs: inputs, machines: map[string]*machine{}}
}

// Run runs the state machines until ctx ends, and joins them. It may be called
// once.
func (m *Manager) Run(ctx context.Context) error {
	m.mu.Lock()
	m.start = func(g *machine) {
		if g.stop == nil {
			mctx, stop := context.WithCancel(ctx)
			g.stop = stop
			m.running.Go(func() { g.run(mctx) })
		}
	}
	for _, g := range m.machines {
		m.start(g)
	}
	m.mu.Unlock()
	<-ctx.Done()
	m.mu.Lock()
	m.start = nil
	m.mu.Unlock()
	m.running.Wait()
	return nil
}

// Register adds a gateway, or replaces the registration of the gateway with
// that name. If the inputs are known, Snapshot returns the snapshot of a new
// gateway when Register has returned. The error names an invalid field.
func (m *Manager) Register(r Registration) error {
	if err := r.check(); err != nil {
		return err
	}
	m.mu.Lock()
	g := m.machines[r.Name]
	isNew := g == nil
	if isNew {
		g = &machine{manager: m}
		m.machines[r.Name] = g
	}
	g.registration.set(Reading[Registration]{Data: r, At: time.Now()}, func(a, b Registration) bool { return a == b })
	m.mu.Unlock()
	if isNew {
		g.step()
		m.mu.Lock()
		if m.start != nil && m.machines[r.Name] == g {
			m.start(g)
		}
		m.mu.Unlock()
	}
	return nil
}

// Drop removes a gateway and its snapshot, if the gateway is registered.
func (m *Manager) Drop(name string) {
	m.mu.Lock()
	g := m.machines[name]
	delete(m.machines, name)
	if g != nil && g.stop != nil {
		g.stop()
	}
	m.mu.Unlock()
	if g != nil {
		m.changed.Notify(name)
	}
}

// Names returns the names of the registered gateways, sorted.
func (m *Manager) Names() []string {
	m.mu.Lock()
	defer m.mu.Unlock()
	return slices.Sorted(maps.Keys(m.machines))
}

// Snapshot returns the newest snapshot of a gateway. It returns nil if the
// gateway is not registered, or if its snapshot is not complete yet. The
// channel is closed at the next change. A reader that is slow misses snapshots,
// but not the newest one.
func (m *Manager) Snapshot(name string) (*Snapshot, <-chan struct{}) {
	changed := m.changed.Wait(name)
	m.mu.Lock()
	defer m.mu.Unlock()
	if g := m.machines[name]; g != nil {
		return g.snapshot, changed
	}
	return nil, changed
}

// Report returns the snapshot of a gateway with the origin and the age of its
// parts. It has only the name if the snapshot is not complete.
func (m *Manager) Report(name string) api.GatewaySnapshot {
	out := api.GatewaySnapshot{Gateway: name}
	s, _ := m.Snapshot(name)
	if s == nil {
		return out
	}
	out.Complete, out.LAN, out.WAN = true, s.LAN, s.WAN
	for _, srv := range s.Servers {
		out.Servers = append(out.Servers, api.SnapshotServer{
			Node: srv.Node, ServerName: srv.Name, Address: srv.Address,
		})
	}
	for _, dc := range s.Datacenters {
		out.Datacenters = append(out.Datacenters, api.SnapshotDatacenter{
			Datacenter: dc.DC, ServerName: dc.Name, Gateways: dc.Gateways,
		})
	}
	servers, _ := m.inputs.Servers.Get()
	datacenters, _ := m.inputs.Datacenters.Get()
	out.Parts = []api.SnapshotPart{
		{Name: "servers", Origin: servers.Origin, Updated: servers.At},
		{Name: "datacenters", Origin: datacenters.Origin, Updated: datacenters.At},
	}
	return out
}

// publish replaces the snapshot of g, unless g was dropped.
func (m *Manager) publish(g *machine, s *Snapshot) {
	m.mu.Lock()
	publish := m.machines[s.Name] == g && !g.snapshot.equal(s)
	if publish {
		g.snapshot = s
	}
	m.mu.Unlock()
	if publish {
		m.changed.Notify(s.Name)
	}
}

// run builds a snapshot after each change of an input, until ctx ends.
func (g *machine) run(ctx context.Context) {
	for ctx.Err() == nil {
		registration, servers, datacenters := g.step()
		next := time.Now().Add(buildInterval)
		select {
		case <-registration:
		case <-servers:
		case <-datacenters:
		case <-ctx.Done():
		}
		backoff.Sleep(ctx, time.Until(next), nil)
	}
}

// step reads the inputs and publishes the snapshot if it is complete. The
// channels are closed at the next change of each input.
func (g *machine) step() (registration, servers, datacenters <-chan struct{}) {
	r, registration := g.registration.Get()
	s, servers := g.manager.inputs.Servers.Get()
	d, datacenters := g.manager.inputs.Datacenters.Get()
	if snap := build(g.manager.dc, g.manager.domain, r.Data, s.Data, d.Data); snap != nil {
		g.manager.publish(g, snap)
	}
	return registration, servers, datacenters
}
