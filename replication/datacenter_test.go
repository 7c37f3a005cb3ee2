// SPDX-License-Identifier: MPL-2.0

package replication

import (
	"errors"
	"fmt"
	"maps"
	"sync"
	"testing"

	"google.golang.org/grpc"

	"github.com/wanfed/wanfed/api/pb"
	"github.com/wanfed/wanfed/resource"
	"github.com/wanfed/wanfed/resource/resourcetest"
)

// dcs are in-memory datacenters of one server each. A restart changes the
// configuration of a server.
type dcs struct {
	t   *testing.T
	mu  sync.Mutex
	all map[string]*dc
}

func (d *dcs) get(name string) *dc {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.all[name]
}

// dc is one datacenter.
type dc struct {
	in    *dcs
	name  string
	store resource.Backend

	mu      sync.Mutex
	manager *PrimaryManager
	source  *Source
	cc      *grpc.ClientConn
	named   map[string]string // primaries of the other servers, by node
	changed chan struct{}
	stop    func()
	relead  func()                                  // elects another leader without a restart
	second  func(n int) pb.ReplicationServiceClient // the server that connection n, from 1, reaches; nil: srv1
	reached int
}

func (d *dcs) add(name, primary string) *dc {
	x := &dc{in: d, name: name, store: resourcetest.NewStore(), changed: make(chan struct{})}
	d.mu.Lock()
	if d.all == nil {
		d.all = map[string]*dc{}
	}
	d.all[name] = x
	d.mu.Unlock()
	x.start(primary)
	return x
}

// start starts the server as the leader.
func (x *dc) start(primary string) {
	x.in.t.Helper()
	t, reg := x.in.t, registry(x.in.t)
	if err := Register(reg); err != nil {
		t.Fatal(err)
	}
	p, err := NewPrimaryManager(PrimaryManagerConfig{
		DC: x.name, ConfiguredPrimary: primary, Backend: x.store, Registry: reg, Logger: quiet,
		Servers: settings{x, primary}, Remote: x.in,
	})
	if err != nil {
		t.Fatal(err)
	}
	src, err := NewSource(SourceConfig{Backend: x.store, Registry: reg, Primary: p, Logger: quiet})
	if err != nil {
		t.Fatal(err)
	}
	srv := grpc.NewServer()
	pb.RegisterReplicationServiceServer(srv, src)
	ln, stopServing := serve(t, srv)
	stopSource, stopLeading := run(t, src.Run), run(t, p.RunLeader)
	x.mu.Lock()
	defer x.mu.Unlock()
	x.manager, x.source, x.cc = p, src, connect(t, ln)
	x.relead = func() { stopLeading(); stopLeading = run(t, p.RunLeader) }
	x.stop = func() {
		x.mu.Lock()
		x.cc = nil
		x.mu.Unlock()
		stopLeading()
		stopServing()
		stopSource()
	}
}

// settings reports what the servers of a datacenter are configured with.
type settings struct {
	*dc
	primary string // of srv1
}

func (s settings) ConfiguredPrimaries() (map[string]string, []string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	byNode := maps.Clone(s.named)
	if byNode == nil {
		byNode = map[string]string{}
	}
	byNode["srv1"] = s.primary
	return byNode, nil
}

func (s settings) Changed() <-chan struct{} {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.changed
}

func (d *dcs) PathsChanged() <-chan struct{} { return nil }

// ReplicationClient returns a client of a server of the named datacenter.
func (d *dcs) ReplicationClient(name string) (pb.ReplicationServiceClient, error) {
	to := d.get(name)
	if to == nil {
		return nil, errors.New("unknown datacenter " + name)
	}
	to.mu.Lock()
	defer to.mu.Unlock()
	if to.cc == nil {
		return nil, errors.New(name + " is down")
	}
	if to.reached++; to.second != nil {
		if c := to.second(to.reached); c != nil {
			return c, nil
		}
	}
	return pb.NewReplicationServiceClient(to.cc), nil
}

func (x *dc) restart(primary string) { x.in.t.Helper(); x.stop(); x.start(primary) }

// others sets the configured primaries of the other servers.
func (x *dc) others(named map[string]string) {
	x.mu.Lock()
	defer x.mu.Unlock()
	x.named = named
	close(x.changed)
	x.changed = make(chan struct{})
}

func (x *dc) until(what string, done func() bool) {
	x.in.t.Helper()
	until(x.in.t, x.store, func() error {
		if !done() {
			return fmt.Errorf("%s: want %s: record %v, pending: %s", x.name, what, x.manager.stored(), x.manager.PendingReason())
		}
		return nil
	})
}

// is waits until all records are those of a primary.
func (x *dc) is(primary string) {
	x.in.t.Helper()
	x.until("of "+primary, func() bool {
		m := x.manager.stored()
		return m.GetDatacenter() == primary && m.GetComplete()
	})
}
