// SPDX-License-Identifier: MPL-2.0

package replication

import (
	"context"
	"errors"
	"sync"
	"testing"
	"time"

	"github.com/wanfed/wanfed/api/pb"
	"github.com/wanfed/wanfed/catalog"
	"github.com/wanfed/wanfed/federation"
	"github.com/wanfed/wanfed/internal/broadcast"
	"github.com/wanfed/wanfed/resource"
	"github.com/wanfed/wanfed/resource/resourcetest"
)

func TestAntiEntropy(t *testing.T) {
	store, up := resourcetest.NewStore(), resourcetest.NewStore()
	monitor, err := catalog.NewTTLMonitor(store, quiet)
	if err != nil {
		t.Fatal(err)
	}
	run(t, monitor.Run)
	g := catalog.NewGateways("dc2", monitor)
	var mu sync.Mutex
	var failing error
	applied := make(chan *pb.FederationState, 100)
	var paths broadcast.Broadcast
	ae, err := NewAntiEntropy(AntiEntropyConfig{
		DC: "dc2", Backend: store, PathsChanged: paths.Wait, Logger: quiet,
		Apply: func(ctx context.Context, s *pb.FederationState) error {
			mu.Lock()
			defer mu.Unlock()
			if failing != nil {
				return failing
			}
			_, _, err := federation.Upsert(ctx, up, s)
			applied <- s
			return err
		},
	})
	if err != nil {
		t.Fatal(err)
	}
	run(t, ae.Run)
	register := func(wan string) {
		t.Helper()
		reg := catalog.GatewayRegistration{Node: "gw1", LAN: "10.0.0.1:8444", WAN: wan}
		for err := g.Register(t.Context(), reg); err != nil; err = g.Register(t.Context(), reg) {
			if !errors.Is(err, resource.ErrNotLeader) { // Run has not started yet
				t.Fatal(err)
			}
		}
	}
	next := func() *pb.FederationState {
		t.Helper()
		select {
		case s := <-applied:
			return s
		case <-time.After(10 * time.Second):
			t.Fatal("Apply was not called, want a call")
			return nil
		}
	}

	register("198.51.100.1:8443")
	if s := next(); len(s.MeshGateways) != 1 || s.UpdatedAt == nil {
		t.Fatalf("applied state = %v, want one gateway", s)
	}
	// The replica arrives. Then the state is deleted in the primary, the deletion
	// arrives too, and the state is written again.
	replicate(t, up, store)
	remove := resource.RemoveOp(resource.ID(federation.StateType, "dc2"), resource.AnyVersion)
	for _, b := range []resource.Backend{up, store} {
		if _, err := b.Commit(t.Context(), remove); err != nil {
			t.Fatal(err)
		}
	}
	next()
	replicate(t, up, store)

	// The primary is unreachable while the address changes.
	mu.Lock()
	failing = errors.New("unreachable")
	mu.Unlock()
	register("198.51.100.2:8443")
	mu.Lock()
	failing = nil
	mu.Unlock()
	paths.Notify()
	if s := next(); catalog.TaggedAddr(s.MeshGateways[0], catalog.TagWAN) != "198.51.100.2:8443" {
		t.Errorf("applied state = %v, want the new address", s)
	}
	select {
	case s := <-applied:
		t.Errorf("applied again: %v, want no call", s)
	default:
	}
}

// replicate replicates federation states in one step.
func replicate(t *testing.T, from, to resource.Backend) {
	t.Helper()
	rs, _, err := from.List(t.Context(), resource.Eventual, resource.Query{Type: federation.StateType})
	if err != nil {
		t.Fatal(err)
	}
	for _, r := range rs {
		if _, err := to.Commit(t.Context(), resource.ReplicaOp(replicaOf(r))); err != nil {
			t.Fatal(err)
		}
	}
}
