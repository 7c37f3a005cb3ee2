// SPDX-License-Identifier: MPL-2.0

package proxycfg

import (
	"context"
	"fmt"
	"math/rand/v2"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/protobuf/proto"

	"github.com/wanfed/wanfed/api/pb"
	"github.com/wanfed/wanfed/internal/testutil"
)

var gw1 = Registration{Name: "gw1", LAN: "10.0.0.5:8444", WAN: "gw1.example:8443"}

// managerRig is a Manager with its inputs, inside synctest.
type managerRig struct {
	*Manager
	t      *testing.T
	inputs *Inputs
}

// withManager runs f with a Manager that runs. synctest fails if a goroutine
// remains.
func withManager(t *testing.T, f func(managerRig)) {
	testutil.Bubble(t, func(t *testing.T) {
		r := managerRig{t: t, inputs: &Inputs{}}
		r.Manager = NewManager("dc1", "wanfed", r.inputs)
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error, 1)
		go func() { done <- r.Run(ctx) }()
		synctest.Wait()
		f(r)
		cancel()
		if err := <-done; err != nil {
			t.Errorf("Run() = %v, want nil", err)
		}
	})
}

func (r managerRig) register(reg Registration) {
	r.t.Helper()
	if err := r.Register(reg); err != nil {
		r.t.Fatalf("Register(%v) = %v, want nil", reg, err)
	}
}

// wantSnapshot checks the snapshot of a gateway after the longest delay. A nil
// message stands for no snapshot.
func (r managerRig) wantSnapshot(reg Registration, m *pb.GatewaySnapshot) {
	r.t.Helper()
	time.Sleep(buildInterval)
	synctest.Wait()
	got, _ := r.Snapshot(reg.Name)
	var want *Snapshot
	if m != nil {
		want, _ = snapshotOf(m)
		want.Registration = reg
	}
	if d := cmp.Diff(want, got); d != "" {
		r.t.Errorf("Snapshot(%s) (-want +got):\n%s", reg.Name, d)
	}
}

func TestManager_DeliversCompleteSnapshots(t *testing.T) {
	withManager(t, func(r managerRig) {
		r.register(gw1)
		r.wantSnapshot(gw1, nil)
		r.inputs.set(&pb.GatewaySnapshot{Datacenter: "dc1", Domain: "wanfed"}, "test", confirmedNow())
		r.wantSnapshot(gw1, nil) // without servers
		r.inputs.set(sample, "test", confirmedNow())
		r.wantSnapshot(gw1, sample)
		r.inputs.set(&pb.GatewaySnapshot{Datacenter: "dc1", Domain: "wanfed"}, "test", confirmedNow())
		r.wantSnapshot(gw1, sample) // the incomplete snapshot is not delivered

		moved := gw1
		moved.WAN = "198.51.100.9:8443"
		r.register(moved)
		r.wantSnapshot(gw1, sample) // still no servers
		r.inputs.set(sample, "test", confirmedNow())
		r.wantSnapshot(moved, sample)

		r.Drop("gw1")
		r.wantSnapshot(gw1, nil)
		r.register(gw1)
		if got, _ := r.Snapshot("gw1"); got == nil || got.Registration != gw1 {
			t.Errorf("Snapshot() after Register() = %v, want the snapshot at once", got)
		}
		if names := r.Names(); len(names) != 1 || names[0] != "gw1" {
			t.Errorf("Names() = %v, want gw1", names)
		}
	})
}

func TestManager_RefusesInvalidRegistration(t *testing.T) {
	m := NewManager("dc1", "wanfed", &Inputs{})
	for _, reg := range []Registration{{}, {Name: "a.b", LAN: gw1.LAN, WAN: gw1.WAN}, {Name: "gw1", LAN: gw1.LAN},
		{Name: "gw1", LAN: "nonsense", WAN: gw1.WAN}} {
		if err := m.Register(reg); err == nil {
			t.Errorf("Register(%v) = nil, want an error", reg)
		}
	}
	if names := m.Names(); len(names) != 0 {
		t.Errorf("Names() = %v, want none", names)
	}
}

// A burst of changes costs few snapshots, and the last change is delivered
// within buildInterval. A reader that reads nothing does not delay others.
func TestManager_CoalescesBursts(t *testing.T) {
	withManager(t, func(r managerRig) {
		r.register(gw1)
		r.inputs.set(sample, "test", confirmedNow())
		r.wantSnapshot(gw1, sample)
		_, unread := r.Snapshot("gw1")
		_, changed := r.Snapshot("gw1")
		delivered := make(chan int)
		stop := make(chan struct{})
		go func() {
			n := 0
			for {
				select {
				case <-changed:
					_, changed = r.Snapshot("gw1")
					n++
				case <-stop:
					delivered <- n
					return
				}
			}
		}()
		const changes = 100
		var last *pb.GatewaySnapshot
		for i := range changes {
			last = proto.CloneOf(sample)
			last.Datacenters[0].Gateways = []string{fmt.Sprintf("198.51.100.2:%d", 1000+i)}
			r.inputs.set(last, "test", confirmedNow())
			time.Sleep(time.Millisecond)
		}
		r.wantSnapshot(gw1, last)
		close(stop)
		if n, limit := <-delivered, changes/20+2; n < 2 || n > limit {
			t.Errorf("snapshots during %d changes = %d, want 2 to %d", changes, n, limit)
		}
		select {
		case <-unread:
		default:
			t.Error("channel of a reader that reads nothing is open, want closed")
		}
	})
}

// An unchanged input, and a change of another gateway, deliver nothing.
func TestManager_DeliversChangesOnly(t *testing.T) {
	withManager(t, func(r managerRig) {
		gw2 := Registration{Name: "gw2", LAN: "10.0.0.6:8444", WAN: "198.51.100.7:8443"}
		r.inputs.set(sample, "test", confirmedNow())
		r.register(gw1)
		r.register(gw2)
		time.Sleep(time.Second)
		before, changed := r.Snapshot("gw1")
		r.inputs.set(proto.CloneOf(sample), "test", confirmedNow())
		r.register(gw1)
		r.register(Registration{Name: "gw2", LAN: "10.0.0.6:8445", WAN: gw2.WAN})
		time.Sleep(time.Second)
		after, _ := r.Snapshot("gw1")
		select {
		case <-changed:
			t.Error("channel of Snapshot(gw1) closed, want open: nothing has changed")
		default:
		}
		if before != after {
			t.Errorf("Snapshot(gw1) = %p, want the same as before: %p", after, before)
		}
		next := proto.CloneOf(sample)
		next.Datacenters = append(next.Datacenters, datacenter("dc3", "198.51.100.3:8443"))
		r.inputs.set(next, "test", confirmedNow())
		r.wantSnapshot(gw1, next)
		if got, _ := r.Snapshot("gw1"); got.Datacenters[0] != before.Datacenters[0] {
			t.Errorf("Snapshot(gw1) has a new copy of %s, want the unchanged one", before.Datacenters[0].DC)
		}
	})
}

// Events in any order end in the state of an ordered run.
func TestManager_RandomOrder(t *testing.T) {
	for range 50 {
		withManager(t, func(r managerRig) {
			regs := map[string]Registration{}
			var m *pb.GatewaySnapshot
			for range 100 {
				name := fmt.Sprintf("gw%d", rand.N(4))
				switch rand.N(4) {
				case 0:
					reg := Registration{Name: name, LAN: gw1.LAN, WAN: fmt.Sprintf("gw.example:%d", 1+rand.N(3))}
					r.register(reg)
					regs[name] = reg
				case 1:
					r.Drop(name)
					delete(regs, name)
				case 2:
					m = proto.CloneOf(sample)
					for i := range rand.N(3) {
						m.Datacenters = append(m.Datacenters, datacenter(fmt.Sprintf("x%d", i),
							fmt.Sprintf("198.51.100.2:%d", 1+rand.N(3))))
					}
					r.inputs.set(m, "test", confirmedNow())
				case 3:
					time.Sleep(rand.N(2 * buildInterval))
				}
			}
			for i := range 4 {
				name := fmt.Sprintf("gw%d", i)
				if reg, ok := regs[name]; ok {
					r.wantSnapshot(reg, m)
				} else {
					r.wantSnapshot(Registration{Name: name}, nil)
				}
			}
		})
	}
}
