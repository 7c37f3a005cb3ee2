// SPDX-License-Identifier: MPL-2.0

package proxycfg

import (
	"context"
	"log/slog"
	"net"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/wanfed/wanfed/internal/broadcast"
	"github.com/wanfed/wanfed/tlsutil"
	"github.com/wanfed/wanfed/tlsutil/tlstest"
	"github.com/wanfed/wanfed/wanfed"
)

// verifierRig runs a verifier over fake gateways, in a synctest bubble.
type verifierRig struct {
	*verifier
	changed broadcast.Broadcast // of snap

	mu     sync.Mutex
	snap   *Snapshot
	down   map[string]wanfed.FailureClass // by address
	probes map[string]int                 // by address
}

func startVerifier(t *testing.T, datacenters ...*Datacenter) *verifierRig {
	t.Helper()
	r := &verifierRig{
		snap: &Snapshot{Datacenters: datacenters}, down: map[string]wanfed.FailureClass{}, probes: map[string]int{},
	}
	r.verifier = newVerifier(func(ctx context.Context, _, addr string) wanfed.FailureClass {
		r.mu.Lock()
		defer r.mu.Unlock()
		r.probes[addr]++
		return r.down[addr]
	}, func() {}, slog.New(slog.DiscardHandler))
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() {
		defer close(done)
		r.run(ctx, func() (*Snapshot, <-chan struct{}) {
			changed := r.changed.Wait()
			r.mu.Lock()
			defer r.mu.Unlock()
			return r.snap, changed
		})
	}()
	t.Cleanup(func() { cancel(); <-done })
	return r
}

func (r *verifierRig) set(addr string, class wanfed.FailureClass) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.down[addr] = class
}

// count returns the number of probes of the addresses.
func (r *verifierRig) count(addrs ...string) (n int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, addr := range addrs {
		n += r.probes[addr]
	}
	return n
}

// await waits until the report has n gateways and returns the time it took.
func (r *verifierRig) await(t *testing.T, n int, limit time.Duration) time.Duration {
	t.Helper()
	for start := time.Now(); ; time.Sleep(10 * time.Millisecond) {
		if len(r.report()) == n {
			return time.Since(start)
		}
		if time.Since(start) > limit {
			t.Fatalf("report() after %v = %v, want %d gateways", limit, r.report(), n)
		}
	}
}

func TestVerifier(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := startVerifier(t, &Datacenter{DC: "dc2", Gateways: []string{"a:1", "b:1"}, Current: 2},
			&Datacenter{DC: "dc3", Gateways: []string{"c:1", "former:1"}, Current: 1})
		r.set("b:1", wanfed.FailureTimeout)
		r.set("c:1", wanfed.FailureTimeout) // the only gateway: servers notice it
		r.set("former:1", wanfed.FailureTimeout)
		r.await(t, 1, 8*time.Second)
		if g := r.report()[0]; g.Datacenter != "dc2" || g.Address != "b:1" || g.Class != "timeout" {
			t.Errorf("report() = %v, want b:1 of dc2 with a timeout", g)
		}
		r.set("b:1", "")
		r.await(t, 0, 4*time.Second)
		if n := r.count("c:1", "former:1"); n != 0 {
			t.Errorf("probes of dc3, which has one gateway = %d, want 0", n)
		}
	})
}

// TestVerifier_AllFail checks that a gateway is not blamed for a fault of all
// gateways of its datacenter, or of the local gateway.
func TestVerifier_AllFail(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := startVerifier(t, &Datacenter{DC: "dc2", Gateways: []string{"a:1", "b:1"}, Current: 2})
		time.Sleep(10 * time.Second) // both have worked
		r.set("a:1", wanfed.FailureTimeout)
		r.set("b:1", wanfed.FailureTimeout)
		for range 600 {
			time.Sleep(time.Second)
			if g := r.report(); len(g) != 0 {
				t.Fatalf("report() = %v, want none", g)
			}
		}
		r.set("a:1", "")
		r.await(t, 1, 5*time.Second)
		r.set("b:1", "")
		r.await(t, 0, 5*time.Second)
	})
}

// TestVerifier_OneFailure checks that one failed probe is not reported.
func TestVerifier_OneFailure(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := startVerifier(t, &Datacenter{DC: "dc2", Gateways: []string{"a:1", "b:1"}, Current: 2})
		r.set("b:1", wanfed.FailureTimeout)
		for r.count("b:1") == 0 {
			time.Sleep(100 * time.Millisecond)
		}
		r.set("b:1", "")
		for range 100 {
			time.Sleep(100 * time.Millisecond)
			if g := r.report(); len(g) != 0 {
				t.Fatalf("report() = %v, want none", g)
			}
		}
	})
}

// TestVerifier_Cost checks the number of probes of gateways that work, and that
// a former gateway is neither probed nor reported.
func TestVerifier_Cost(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		two := &Datacenter{DC: "dc2", Gateways: []string{"a:1", "b:1"}, Current: 2}
		r := startVerifier(t, two)
		time.Sleep(time.Hour)
		if n := r.count("a:1"); n < 20 || n > 41 {
			t.Errorf("probes in an hour = %d, want one per 2 minutes", n)
		}
		r.set("b:1", wanfed.FailureRefused)
		r.await(t, 1, 4*time.Minute)
		r.mu.Lock()
		r.snap = &Snapshot{Datacenters: []*Datacenter{{DC: "dc2", Gateways: []string{"a:1", "b:1"}, Current: 1}}}
		r.mu.Unlock()
		r.changed.Notify()
		r.await(t, 0, time.Second)
		before := r.count("a:1", "b:1")
		time.Sleep(time.Hour)
		if n := r.count("a:1", "b:1") - before; n != 0 {
			t.Errorf("probes of a datacenter with one gateway = %d, want 0", n)
		}
	})
}

func TestProbeGateway(t *testing.T) {
	ca := tlstest.NewCA(t)
	id := ca.Identity(t, tlsutil.RoleGateway, "gw1", "dc1")
	server := newDouble(t, ca.Identity(t, tlsutil.RoleServer, "srv1", "dc2"), nil)
	if got := probeGateway(t.Context(), id, "dc2", server.addr); got != "" {
		t.Errorf("probeGateway() = %q, want success", got)
	}
	other := newDouble(t, ca.Identity(t, tlsutil.RoleServer, "srv1", "dc3"), nil)
	if got := probeGateway(t.Context(), id, "dc2", other.addr); got == "" {
		t.Errorf("probeGateway() of another datacenter = %q, want a failure", got)
	}
	closed, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	closed.Close()
	if got := probeGateway(t.Context(), id, "dc2", closed.Addr().String()); got != wanfed.FailureRefused {
		t.Errorf("probeGateway() of a closed port = %q, want %q", got, wanfed.FailureRefused)
	}
}
