// SPDX-License-Identifier: MPL-2.0

package replication

import (
	"context"
	"errors"
	"sync/atomic"
	"testing"
	"time"

	"github.com/wanfed/wanfed/api/pb"
	"github.com/wanfed/wanfed/catalog"
	"github.com/wanfed/wanfed/federation"
	"github.com/wanfed/wanfed/internal/broadcast"
	"github.com/wanfed/wanfed/resource"
	"github.com/wanfed/wanfed/resource/resourcetest"
)

// antiEntropyTest runs an AntiEntropy of dc2.
type antiEntropyTest struct {
	store, primary resource.Backend // of dc2 and of the primary
	gateways       *catalog.Gateways
	paths          broadcast.Broadcast
	unreachable    atomic.Bool              // Apply fails
	applied        chan *pb.FederationState // states that Apply received
}

func newAntiEntropyTest(t *testing.T) *antiEntropyTest {
	t.Helper()
	e := &antiEntropyTest{store: resourcetest.NewStore(), primary: resourcetest.NewStore(),
		applied: make(chan *pb.FederationState, 100)}
	monitor, err := catalog.NewTTLMonitor(e.store, discardLogger)
	if err != nil {
		t.Fatal(err)
	}
	e.gateways = catalog.NewGateways("dc2", monitor)
	a, err := NewAntiEntropy(AntiEntropyConfig{
		DC: "dc2", Backend: e.store, PathsChanged: e.paths.Wait, Logger: discardLogger, Apply: e.apply,
	})
	if err != nil {
		t.Fatal(err)
	}
	run(t, monitor.Run)
	run(t, a.Run)
	return e
}

func (e *antiEntropyTest) apply(ctx context.Context, s *pb.FederationState) error {
	if e.unreachable.Load() {
		return errors.New("unreachable")
	}
	_, _, err := federation.Upsert(ctx, e.primary, s)
	e.applied <- s
	return err
}

// register registers a gateway with a WAN address.
func (e *antiEntropyTest) register(t *testing.T, wan string) {
	t.Helper()
	reg := catalog.GatewayRegistration{Node: "gw1", LAN: "10.0.0.1:8444", WAN: wan}
	for err := e.gateways.Register(t.Context(), reg); err != nil; err = e.gateways.Register(t.Context(), reg) {
		if !errors.Is(err, resource.ErrNotLeader) { // monitor.Run has not started yet
			t.Fatal(err)
		}
	}
}

// checkApplied waits for a call of Apply with a gateway, and checks the WAN
// address in the state.
func (e *antiEntropyTest) checkApplied(t *testing.T, wan string) {
	t.Helper()
	timeout := time.After(10 * time.Second)
	for {
		select {
		case s := <-e.applied:
			if len(s.MeshGateways) == 0 {
				continue // between two registrations
			}
			if len(s.MeshGateways) != 1 || s.UpdatedAt == nil ||
				catalog.TaggedAddr(s.MeshGateways[0], catalog.TagWAN) != wan {
				t.Fatalf("applied state = %v, want a gateway with address %s", s, wan)
			}
			return
		case <-timeout:
			t.Fatal("Apply() was not called, want a call")
		}
	}
}

func TestAntiEntropy(t *testing.T) {
	e := newAntiEntropyTest(t)
	e.register(t, "198.51.100.1:8443")
	e.checkApplied(t, "198.51.100.1:8443")
	replicate(t, e.primary, e.store)

	t.Run("state deleted in the primary", func(t *testing.T) {
		remove := resource.RemoveOp(resource.ID(federation.StateType, "dc2"), resource.AnyVersion)
		commitOne(t, e.primary, remove)
		commitOne(t, e.store, remove)
		e.checkApplied(t, "198.51.100.1:8443")
		replicate(t, e.primary, e.store)
	})
	t.Run("primary unreachable during a change", func(t *testing.T) {
		e.unreachable.Store(true)
		old := catalog.GatewayRegistration{Node: "gw1", LAN: "10.0.0.1:8444", WAN: "198.51.100.1:8443"}
		if err := e.gateways.Deregister(t.Context(), old); err != nil { // otherwise it keeps the name
			t.Fatal(err)
		}
		e.register(t, "198.51.100.2:8443")
		e.unreachable.Store(false)
		e.paths.Notify()
		e.checkApplied(t, "198.51.100.2:8443")
	})
	select {
	case s := <-e.applied:
		t.Errorf("Apply(%v) was called again, want no call", s)
	default:
	}
}

// replicate copies all federation states from one store to another.
func replicate(t *testing.T, from, to resource.Backend) {
	t.Helper()
	rs, _, err := from.List(t.Context(), resource.Eventual, resource.Query{Type: federation.StateType})
	if err != nil {
		t.Fatal(err)
	}
	for _, r := range rs {
		commitOne(t, to, resource.ReplicaOp(replicaOf(r)))
	}
}
