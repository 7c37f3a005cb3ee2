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
	"github.com/wanfed/wanfed/internal/testutil"
	"github.com/wanfed/wanfed/resource"
	"github.com/wanfed/wanfed/resource/resourcetest"
)

// countingBackend counts the commits of a backend.
type countingBackend struct {
	resource.Backend
	mu      sync.Mutex
	commits int
	failure error // of the next commit
}

// failNext makes the next commit fail with err.
func (c *countingBackend) failNext(err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.failure = err
}

func (c *countingBackend) Commit(ctx context.Context, ops ...*pb.Op) ([]*pb.Resource, error) {
	c.mu.Lock()
	c.commits++
	err := c.failure
	c.failure = nil
	c.mu.Unlock()
	if err != nil {
		return nil, err
	}
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
	testutil.Bubble(t, func(t *testing.T) {
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
		time.Sleep(takeOverAfter - HeartbeatInterval)
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

// TestRegister_NameTaken registers two gateways with one name and different
// addresses. The first one stays while it is alive, and its check names the
// addresses of the other.
func TestRegister_NameTaken(t *testing.T) {
	second := GatewayRegistration{Node: "gw1", LAN: "10.0.0.2:8444", WAN: "192.0.2.2:8443"}
	run := func(t *testing.T, f func(ctx context.Context, g *Gateways, gateway func() *pb.MeshGateway)) {
		t.Helper()
		withLeader(t, func(ctx context.Context, g *Gateways, store *countingBackend) {
			if err := g.Register(ctx, gw1); err != nil {
				t.Fatal(err)
			}
			synctest.Wait()
			f(ctx, g, func() *pb.MeshGateway { return list(t, store)[0] })
			if n := store.count(); n > 8 {
				t.Errorf("the conflict caused %d commits, want at most 8", n)
			}
		})
	}
	refused := func(t *testing.T, ctx context.Context, g *Gateways, reg GatewayRegistration) {
		t.Helper()
		err := g.Register(ctx, reg)
		if !errors.Is(err, ErrNameTaken) || !strings.Contains(err.Error(), gw1.WAN) ||
			!strings.Contains(err.Error(), second.WAN) || !strings.Contains(err.Error(), "another name") {
			t.Fatalf("Register(%v) = %v, want %v with both addresses", reg, err, ErrNameTaken)
		}
	}
	accepted := func(t *testing.T, ctx context.Context, g *Gateways, reg GatewayRegistration) {
		t.Helper()
		if err := g.Register(ctx, reg); err != nil {
			t.Fatalf("Register(%v) = %v, want nil", reg, err)
		}
	}
	t.Run("both alive", func(t *testing.T) {
		run(t, func(ctx context.Context, g *Gateways, gateway func() *pb.MeshGateway) {
			for range 50 {
				refused(t, ctx, g, second)
				time.Sleep(HeartbeatInterval / 2)
				refused(t, ctx, g, second)
				time.Sleep(HeartbeatInterval / 2)
				accepted(t, ctx, g, gw1)
				if got := NameConflict(gateway()); !strings.Contains(got, second.LAN) || !strings.Contains(got, second.WAN) {
					t.Fatalf("NameConflict() = %q, want the addresses of the second gateway", got)
				}
			}
			if err := g.Deregister(ctx, second); err != nil {
				t.Fatal(err)
			}
			accepted(t, ctx, g, gw1)
			if got := NameConflict(gateway()); got != "" || TaggedAddr(gateway(), TagWAN) != gw1.WAN {
				t.Errorf("NameConflict() after the second gateway stopped = %q at %v, want none", got, gateway())
			}
		})
	})
	t.Run("late heartbeat", func(t *testing.T) {
		run(t, func(ctx context.Context, g *Gateways, gateway func() *pb.MeshGateway) {
			refused(t, ctx, g, second)
			time.Sleep(HeartbeatInterval)
			accepted(t, ctx, g, gw1)
			for range 5 { // more than takeOverAfter
				time.Sleep(time.Second)
				refused(t, ctx, g, second)
			}
			accepted(t, ctx, g, gw1)
		})
	})
	t.Run("first one fails", func(t *testing.T) {
		run(t, func(ctx context.Context, g *Gateways, gateway func() *pb.MeshGateway) {
			refused(t, ctx, g, second)
			time.Sleep(takeOverAfter)
			accepted(t, ctx, g, second)
			if got := TaggedAddr(gateway(), TagWAN); got != second.WAN {
				t.Errorf("WAN address = %s, want %s", got, second.WAN)
			}
			time.Sleep(time.Second)
			refused(t, ctx, g, gw1) // it was frozen and continues
		})
	})
	t.Run("first one stops", func(t *testing.T) {
		run(t, func(ctx context.Context, g *Gateways, gateway func() *pb.MeshGateway) {
			refused(t, ctx, g, second)
			if err := g.Deregister(ctx, gw1); err != nil {
				t.Fatal(err)
			}
			accepted(t, ctx, g, second)
		})
	})
	t.Run("known rival, first one fails", func(t *testing.T) {
		run(t, func(ctx context.Context, g *Gateways, gateway func() *pb.MeshGateway) {
			refused(t, ctx, g, second)
			time.Sleep(time.Second)
			accepted(t, ctx, g, gw1)
			start := time.Now()
			for g.Register(ctx, second) != nil && time.Since(start) < time.Minute {
				time.Sleep(time.Second)
			}
			if took := time.Since(start); took < HeartbeatTTL || took > HeartbeatTTL+time.Second {
				t.Errorf("the second gateway took the name after %v, want %v", took, HeartbeatTTL)
			}
		})
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
			t.Error("gateway is critical before its TTL has passed, want it healthy")
		}
		time.Sleep(2 * time.Millisecond)
		synctest.Wait()
		if Healthy(list(t, store)[0]) {
			t.Error("gateway is healthy after its TTL, want it critical")
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
			t.Error("gateway is critical after a new heartbeat, want it healthy")
		}
		synctest.Wait()
		time.Sleep(HeartbeatTTL + time.Millisecond)
		synctest.Wait()
		if Healthy(list(t, store)[0]) {
			t.Error("gateway is healthy after its second TTL, want it critical")
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
			if err := g.Deregister(ctx, gw1); err != nil {
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
	testutil.Bubble(t, func(t *testing.T) {
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
				t.Error("gateway is critical before a full TTL of the new leader, want it healthy")
			}
			time.Sleep(2 * time.Millisecond)
			synctest.Wait()
			if Healthy(list(t, mem)[0]) {
				t.Error("gateway is healthy after a full TTL of the new leader, want it critical")
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
		if got := g.Refused(); len(got) != 1 || !strings.Contains(err.Error(), got["gw2"]) {
			t.Errorf("Refused() = %v, want the reason for gw2", got)
		}
		own := GatewayRegistration{Node: "gw2", LAN: "10.0.0.77:8443", WAN: "10.0.0.77:8443"}
		if err := g.Register(ctx, own); err != nil {
			t.Errorf("Register() with one address for both = %v, want nil", err)
		}
		if got := g.Refused(); len(got) != 0 {
			t.Errorf("Refused() = %v, want none after a registration", got)
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
	if err := g.Deregister(t.Context(), gw1); !errors.Is(err, resource.ErrNotLeader) {
		t.Errorf("Deregister() without Run = %v, want ErrNotLeader", err)
	}
}

// TestGateways_Unreachable checks that the reports of gateways are merged, and
// that a report ends with the heartbeats.
func TestGateways_Unreachable(t *testing.T) {
	withLeader(t, func(ctx context.Context, g *Gateways, _ *countingBackend) {
		register := func(node string, addrs ...string) {
			t.Helper()
			reg := GatewayRegistration{Node: node, LAN: "10.0.0.1:1", WAN: node + ".example:8443"}
			for _, addr := range addrs {
				u := &pb.UnreachableGateway{Datacenter: "dc2", Address: addr, Class: "timeout"}
				reg.Unreachable = append(reg.Unreachable, u)
			}
			if err := g.Register(ctx, reg); err != nil {
				t.Fatal(err)
			}
		}
		check := func(want int) {
			t.Helper()
			if got, _ := g.Unreachable(); len(got) != want {
				t.Errorf("Unreachable() = %v, want %d gateways", got, want)
			}
		}
		_, changed := g.Unreachable()
		register("gw1", "a:1", "b:1")
		select {
		case <-changed:
		default:
			t.Error("Unreachable() notifies of no change")
		}
		register("gw2", "b:1", "c:1")
		check(3)
		register("gw1")
		check(2)
		time.Sleep(HeartbeatTTL)
		check(0)
	})
}
