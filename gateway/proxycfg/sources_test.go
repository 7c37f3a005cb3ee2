// SPDX-License-Identifier: MPL-2.0

package proxycfg

import (
	"context"
	"fmt"
	"log/slog"
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/protobuf/proto"

	"github.com/wanfed/wanfed/api/pb"
	"github.com/wanfed/wanfed/gateway/proxycfg/consultest"
	"github.com/wanfed/wanfed/internal/broadcast"
	"github.com/wanfed/wanfed/internal/testutil"
	"github.com/wanfed/wanfed/tlsutil"
)

// source is a running source of data in the conformance suite.
type source struct {
	inputs *Inputs // that the source writes
	// publish changes the data at the origin. It also works during an outage.
	publish func(*pb.GatewaySnapshot)
	// interrupt begins an outage of the origin, and resume ends it.
	interrupt, resume func()
}

// sources are the sources of data. Each value starts a source whose origin has
// the data first.
var sources = map[string]func(t *testing.T, first *pb.GatewaySnapshot) source{
	"local": func(t *testing.T, first *pb.GatewaySnapshot) source {
		// The store of a server is in the same process. In an outage it sends no
		// message.
		d := &double{snap: first, changed: make(chan struct{})}
		in := &Inputs{}
		ctx, cancel := context.WithCancel(context.Background())
		done := make(chan error, 1)
		go func() {
			done <- in.Follow(ctx, "store", func() (*pb.GatewaySnapshot, <-chan struct{}) {
				d.mu.Lock()
				defer d.mu.Unlock()
				return d.snap, d.changed
			}, slog.New(slog.DiscardHandler))
		}()
		t.Cleanup(func() {
			cancel()
			if err := <-done; err != nil {
				t.Errorf("Follow() = %v, want nil", err)
			}
		})
		var pending *pb.GatewaySnapshot
		interrupted := false
		return source{
			inputs: in,
			publish: func(m *pb.GatewaySnapshot) {
				if pending = m; !interrupted {
					d.publish(m)
				}
			},
			interrupt: func() { interrupted = true },
			resume:    func() { interrupted = false; d.publish(pending) },
		}
	},
	"remote": func(t *testing.T, first *pb.GatewaySnapshot) source {
		r := newRig(t)
		id := r.ca.Identity(t, tlsutil.RoleServer, "srv1", "dc1")
		srv := newDouble(t, id, first)
		r.start(t, srv.addr)
		return source{
			inputs:    &r.inputs,
			publish:   func(m *pb.GatewaySnapshot) { srv.publish(m) },
			interrupt: func() { srv.stop() },
			resume:    func() { srv = newDoubleAt(t, id, srv.snap, srv.addr) },
		}
	},
	"consul": func(t *testing.T, first *pb.GatewaySnapshot) source {
		r := newConsulRig(t)
		setAgent(r.agent, first)
		r.start(t)
		return source{
			inputs:    &r.inputs,
			publish:   func(m *pb.GatewaySnapshot) { setAgent(r.agent, m) },
			interrupt: r.agent.Stop,
			resume:    func() { r.agent.Start(true) },
		}
	},
}

// setAgent makes a Consul agent have the data of a message.
func setAgent(a *consultest.Agent, m *pb.GatewaySnapshot) {
	servers := map[string]string{}
	for _, s := range m.Servers {
		servers[s.Node] = s.Address
	}
	gateways := map[string][]consultest.Gateway{}
	for _, d := range m.Datacenters {
		for i, addr := range d.Gateways {
			gateways[d.Name] = append(gateways[d.Name], consultest.Gateway{Node: fmt.Sprintf("gw%04d", i), WAN: addr})
		}
	}
	a.Set(servers, gateways)
}

// TestSources is the conformance suite of the sources of data: the same changes
// at the origin cause the same inputs and notifications.
func TestSources(t *testing.T) {
	for name, start := range sources {
		t.Run(name, func(t *testing.T) {
			t.Run("changes", func(t *testing.T) { testChanges(t, start(t, sample)) })
			t.Run("slow reader", func(t *testing.T) { testSlowReader(t, start(t, sample)) })
			t.Run("outage", func(t *testing.T) {
				testutil.Cluster(t)
				testOutage(t, start(t, sample))
			})
		})
	}
}

// want waits until the inputs have the data of a message.
func (s source) want(t *testing.T, m *pb.GatewaySnapshot) {
	t.Helper()
	servers, datacenters, _ := parse(m)
	wantReading(t, &s.inputs.Servers, servers)
	wantReading(t, &s.inputs.Datacenters, datacenters)
}

// A change notifies the readers of the part that changed. An unchanged
// datacenter keeps its address. An invalid part is omitted.
func testChanges(t *testing.T, s source) {
	s.want(t, sample)
	first, _ := s.inputs.Datacenters.Get()
	_, servers := s.inputs.Servers.Get()

	next := proto.CloneOf(sample)
	next.Datacenters = append(next.Datacenters, datacenter("dc3", "198.51.100.3:8443"))
	s.publish(next)
	s.want(t, next)
	if r, _ := s.inputs.Datacenters.Get(); r.Data[0] != first.Data[0] {
		t.Error("unchanged datacenter has a new copy, want the same")
	}
	if broadcast.IsClosed(servers) {
		t.Error("channel of unchanged servers is closed, want open")
	}

	bad := proto.CloneOf(next)
	bad.Datacenters = append(bad.Datacenters, datacenter("dc4", "nonsense"), datacenter("dc5", "198.51.100.5:8443"))
	s.publish(bad)
	good := proto.CloneOf(next)
	good.Datacenters = append(good.Datacenters, datacenter("dc5", "198.51.100.5:8443"))
	s.want(t, good) // without dc4

	s.publish(next) // a datacenter disappears
	s.want(t, next)
	_, servers = s.inputs.Servers.Get()
	_, datacenters := s.inputs.Datacenters.Get()
	s.publish(proto.CloneOf(next)) // nothing changes
	changed := proto.CloneOf(next)
	changed.Servers = append(changed.Servers, server("srv2", "10.0.0.2:8300"))
	s.publish(changed)
	s.want(t, changed)
	if !broadcast.IsClosed(servers) || broadcast.IsClosed(datacenters) {
		t.Errorf("channels closed: servers %t, datacenters %t; want only servers", broadcast.IsClosed(servers),
			broadcast.IsClosed(datacenters))
	}
}

// A reader that does not read during many changes receives the newest data.
func testSlowReader(t *testing.T, s source) {
	s.want(t, sample)
	_, changed := s.inputs.Servers.Get()
	var last *pb.GatewaySnapshot
	for i := range 50 {
		last = proto.CloneOf(sample)
		last.Servers[0].Address = fmt.Sprintf("10.0.0.1:%d", 1000+i)
		s.publish(last)
	}
	s.want(t, last)
	if !broadcast.IsClosed(changed) {
		t.Error("channel after the changes is open, want closed")
	}
}

// During an outage the data stays and its time does not advance. After the
// outage the source has the changes that happened in it.
func testOutage(t *testing.T, s source) {
	s.want(t, sample)
	s.interrupt()
	began := time.Now()
	next := proto.CloneOf(sample)
	next.Datacenters[0].Gateways = []string{"198.51.100.9:8443"}
	s.publish(next)
	deadline := began.Add(200 * time.Millisecond)
	testutil.Eventually(t, waitLimit, func() bool { return time.Now().After(deadline) }, "the end of the outage")
	r, _ := s.inputs.Datacenters.Get()
	if r.At.After(began) || !slices.Equal(r.Data[0].Gateways, sample.Datacenters[0].Gateways) {
		t.Errorf("Get() in the outage = %v of %v, want the data before %v", r.Data[0], r.At, began)
	}
	s.resume()
	s.want(t, next)
	if r, _ := s.inputs.Datacenters.Get(); !r.At.After(began) {
		t.Errorf("time of the data after the outage = %v, want a time after %v", r.At, began)
	}
}

// wantReading waits until a Value has the data want, with its origin and time.
func wantReading[T any](t *testing.T, v *Value[T], want T) {
	t.Helper()
	for timeout := time.After(waitLimit); ; {
		r, changed := v.Get()
		d := cmp.Diff(want, r.Data)
		if d == "" {
			if r.Origin == "" || time.Since(r.At) > waitLimit {
				t.Errorf("Get() = origin %q, at %v, want both", r.Origin, r.At)
			}
			return
		}
		select {
		case <-changed:
		case <-timeout:
			t.Fatalf("Get() after %v (-want +got):\n%s", waitLimit, d)
		}
	}
}
