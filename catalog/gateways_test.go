// SPDX-License-Identifier: MPL-2.0

package catalog

import (
	"context"
	"errors"
	"log/slog"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/wanfed/wanfed/api/pb"
	"github.com/wanfed/wanfed/resource"
	"github.com/wanfed/wanfed/resource/resourcetest"
)

// countingBackend counts the commits of a backend.
type countingBackend struct {
	resource.Backend
	mu      sync.Mutex
	commits int
}

func (c *countingBackend) Commit(ctx context.Context, ops ...*pb.Op) ([]*pb.Resource, error) {
	c.mu.Lock()
	c.commits++
	c.mu.Unlock()
	return c.Backend.Commit(ctx, ops...)
}

func (c *countingBackend) count() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.commits
}

var gw1 = GatewayRegistration{Node: "gw1", LAN: "10.0.0.1:8444", WAN: "gw1.dc1.example:8443"}

// newGateways returns the Gateways of dc1 and their TTLMonitor.
func newGateways(t *testing.T, b resource.Backend) (*Gateways, *TTLMonitor) {
	t.Helper()
	m, err := NewTTLMonitor(b, slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	return NewGateways("dc1", m), m
}

// lead runs f while TTLMonitor.Run runs, and checks the result of Run. The
// caller must be in a synctest bubble.
func lead(t *testing.T, b resource.Backend, f func(ctx context.Context, g *Gateways)) {
	t.Helper()
	g, m := newGateways(t, b)
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error)
	go func() { done <- m.Run(ctx) }()
	synctest.Wait()
	f(ctx, g)
	cancel()
	if err := <-done; err != nil {
		t.Errorf("Run() = %v, want nil", err)
	}
}

// withLeader runs f with a new store, in fake time, while TTLMonitor.Run runs.
func withLeader(t *testing.T, f func(ctx context.Context, g *Gateways, store *countingBackend)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		mem := resourcetest.NewStore()
		defer mem.Close()
		store := &countingBackend{Backend: mem}
		lead(t, store, func(ctx context.Context, g *Gateways) { f(ctx, g, store) })
	})
}

func list(t *testing.T, b resource.Backend) []*pb.MeshGateway {
	t.Helper()
	gs, err := ListGateways(t.Context(), b)
	if err != nil {
		t.Fatal(err)
	}
	return gs
}

func TestRegister_WritesOnlyChanges(t *testing.T) {
	withLeader(t, func(ctx context.Context, g *Gateways, store *countingBackend) {
		for range 100 {
			if err := g.Register(ctx, gw1); err != nil {
				t.Fatal(err)
			}
			time.Sleep(HeartbeatInterval)
		}
		if n := store.count(); n != 1 {
			t.Errorf("100 heartbeats made %d commits, want 1", n)
		}
		gs := list(t, store)
		if len(gs) != 1 || !Healthy(gs[0]) || TaggedAddr(gs[0], TagLAN) != gw1.LAN ||
			TaggedAddr(gs[0], TagWAN) != gw1.WAN {
			t.Fatalf("ListGateways() = %v, want gw1, healthy, with its addresses", gs)
		}
		moved := gw1
		moved.WAN = "[2001:db8::7]:8443"
		if err := g.Register(ctx, moved); err != nil {
			t.Fatal(err)
		}
		if gs := list(t, store); len(gs) != 1 || TaggedAddr(gs[0], TagWAN) != moved.WAN {
			t.Errorf("ListGateways() after a change of address = %v, want %s", gs, moved.WAN)
		}
		if n := store.count(); n != 2 {
			t.Errorf("a change of address made %d commits, want 1", n-1)
		}
	})
}

func TestGateways_TTLExpired(t *testing.T) {
	withLeader(t, func(ctx context.Context, g *Gateways, store *countingBackend) {
		if err := g.Register(ctx, gw1); err != nil {
			t.Fatal(err)
		}
		synctest.Wait()
		time.Sleep(HeartbeatTTL - time.Millisecond)
		synctest.Wait()
		if !Healthy(list(t, store)[0]) {
			t.Error("gateway is critical before its TTL has passed")
		}
		time.Sleep(2 * time.Millisecond)
		synctest.Wait()
		if Healthy(list(t, store)[0]) {
			t.Error("gateway is not critical after its TTL")
		}
		writes := store.count()
		time.Sleep(time.Hour)
		synctest.Wait()
		if n := store.count(); n != writes {
			t.Errorf("a critical gateway caused %d commits in an hour, want 0", n-writes)
		}
		if err := g.Register(ctx, gw1); err != nil {
			t.Fatal(err)
		}
		if !Healthy(list(t, store)[0]) {
			t.Error("gateway is critical after a new heartbeat")
		}
		synctest.Wait()
		time.Sleep(HeartbeatTTL + time.Millisecond)
		synctest.Wait()
		if Healthy(list(t, store)[0]) {
			t.Error("gateway is not critical after its second TTL")
		}
	})
}

func TestGateways_ReapAfter(t *testing.T) {
	withLeader(t, func(ctx context.Context, g *Gateways, store *countingBackend) {
		if err := g.Register(ctx, gw1); err != nil {
			t.Fatal(err)
		}
		time.Sleep(ReapAfter + time.Second)
		synctest.Wait()
		if gs := list(t, store); len(gs) != 0 {
			t.Errorf("ListGateways() after %v = %v, want none", ReapAfter, gs)
		}
	})
}

func TestDeregister_DeletesAll(t *testing.T) {
	withLeader(t, func(ctx context.Context, g *Gateways, store *countingBackend) {
		if err := g.Register(ctx, gw1); err != nil {
			t.Fatal(err)
		}
		for range 2 { // Deregister is idempotent
			if err := g.Deregister(ctx, "gw1"); err != nil {
				t.Fatal(err)
			}
		}
		for _, typ := range []*pb.Type{NodeType, ServiceType, CheckType} {
			rs, _, err := store.List(ctx, resource.Eventual, resource.Query{Type: typ})
			if err != nil || len(rs) != 0 {
				t.Errorf("List(%s) after Deregister = %v, %v, want none", typ.Kind, rs, err)
			}
		}
	})
}

func TestGateways_NewLeaderGrantsFullTTL(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		mem := resourcetest.NewStore()
		defer mem.Close()
		lead(t, mem, func(ctx context.Context, g *Gateways) {
			if err := g.Register(ctx, gw1); err != nil {
				t.Fatal(err)
			}
			time.Sleep(HeartbeatTTL - time.Second)
		})
		time.Sleep(time.Minute) // without a leader
		lead(t, mem, func(context.Context, *Gateways) {
			time.Sleep(HeartbeatTTL - time.Millisecond)
			synctest.Wait()
			if !Healthy(list(t, mem)[0]) {
				t.Error("gateway is critical before a full TTL of the new leader")
			}
			time.Sleep(2 * time.Millisecond)
			synctest.Wait()
			if Healthy(list(t, mem)[0]) {
				t.Error("gateway is not critical after a full TTL of the new leader")
			}
		})
	})
}

func TestRegister_Refuses(t *testing.T) {
	withLeader(t, func(ctx context.Context, g *Gateways, store *countingBackend) {
		for _, reg := range []GatewayRegistration{
			{Node: "gw1", LAN: "", WAN: gw1.WAN},
			{Node: "gw1", LAN: "10.0.0.1", WAN: gw1.WAN},
			{Node: "gw1", LAN: "10.0.0.1:0", WAN: gw1.WAN},
			{Node: "gw1", LAN: "10.0.0.1:99999", WAN: gw1.WAN},
			{Node: "gw1", LAN: gw1.LAN, WAN: "0.0.0.0:8443"},
			{Node: "gw1", LAN: gw1.LAN, WAN: "[::]:8443"},
		} {
			if err := g.Register(ctx, reg); err == nil {
				t.Errorf("Register(%+v) = nil, want an error", reg)
			}
		}
		if n := store.count(); n != 0 {
			t.Errorf("refused registrations made %d commits, want 0", n)
		}
	})
}

// The WAN address of a gateway is the LAN address of another one.
func TestRegister_RefusesLANAddressOfAnother(t *testing.T) {
	withLeader(t, func(ctx context.Context, g *Gateways, _ *countingBackend) {
		if err := g.Register(ctx, gw1); err != nil {
			t.Fatal(err)
		}
		wrong := GatewayRegistration{Node: "gw2", LAN: "10.0.0.77:8443", WAN: gw1.LAN}
		err := g.Register(ctx, wrong)
		if err == nil || !strings.Contains(err.Error(), gw1.LAN+" is the LAN address of gateway gw1") {
			t.Errorf("Register(%+v) = %v, want the gateway that has the address", wrong, err)
		}
		own := GatewayRegistration{Node: "gw2", LAN: "10.0.0.77:8443", WAN: "10.0.0.77:8443"}
		if err := g.Register(ctx, own); err != nil {
			t.Errorf("Register() with one address for both = %v, want nil", err)
		}
		time.Sleep(HeartbeatTTL + HeartbeatInterval) // gw1 is critical: the address may belong to gw2 now
		if err := g.Register(ctx, wrong); err != nil {
			t.Errorf("Register() after the end of gw1 = %v, want nil", err)
		}
	})
}

func TestGateways_NotLeader(t *testing.T) {
	g, _ := newGateways(t, resourcetest.NewStore())
	if err := g.Register(t.Context(), gw1); !errors.Is(err, resource.ErrNotLeader) {
		t.Errorf("Register() without Run = %v, want ErrNotLeader", err)
	}
	if err := g.Deregister(t.Context(), "gw1"); !errors.Is(err, resource.ErrNotLeader) {
		t.Errorf("Deregister() without Run = %v, want ErrNotLeader", err)
	}
}
