// SPDX-License-Identifier: MPL-2.0

package proxycfg

import (
	"context"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"net"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/wanfed/wanfed/internal/backoff"
	"github.com/wanfed/wanfed/internal/broadcast"
	"github.com/wanfed/wanfed/internal/netaddr"
	"github.com/wanfed/wanfed/internal/testutil"
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
	conns  map[string]int                 // by address
	checks int
}

func startVerifier(t *testing.T, datacenters ...*Datacenter) *verifierRig {
	t.Helper()
	r := &verifierRig{
		snap: &Snapshot{Datacenters: datacenters}, down: map[string]wanfed.FailureClass{}, conns: map[string]int{},
	}
	r.start(t, func(_ context.Context, _, addr string) wanfed.FailureClass {
		time.Sleep(20 * time.Millisecond)
		r.mu.Lock()
		defer r.mu.Unlock()
		r.conns[addr]++
		return r.down[addr]
	})
	return r
}

// start runs a verifier with this function to connect.
func (r *verifierRig) start(t *testing.T, connect func(context.Context, string, string) wanfed.FailureClass) {
	check := func(ctx context.Context, target verifyTarget) bool {
		addr := target.addr
		r.mu.Lock()
		r.checks++
		class := r.down[addr]
		r.mu.Unlock()
		if class == wanfed.FailureTimeout {
			backoff.Sleep(ctx, checkTimeout, nil)
		}
		return class == ""
	}
	r.verifier = newVerifier(func(ctx context.Context, target verifyTarget) wanfed.FailureClass {
		return connect(ctx, target.dc, target.addr)
	}, check, func() {}, slog.New(slog.DiscardHandler))
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
}

func (r *verifierRig) set(addr string, class wanfed.FailureClass) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.down[addr] = class
}

// count returns the number of connections to the addresses.
func (r *verifierRig) count(addrs ...string) (n int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, addr := range addrs {
		n += r.conns[addr]
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
	testutil.Bubble(t, func(t *testing.T) {
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
	testutil.Bubble(t, func(t *testing.T) {
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

// TestVerifier_OneFailure checks that one failed connection is not reported.
func TestVerifier_OneFailure(t *testing.T) {
	testutil.Bubble(t, func(t *testing.T) {
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
	testutil.Bubble(t, func(t *testing.T) {
		two := &Datacenter{DC: "dc2", Gateways: []string{"a:1", "b:1"}, Current: 2}
		r := startVerifier(t, two)
		time.Sleep(time.Hour)
		if n := r.count("a:1"); n < 20 || n > 41 {
			t.Errorf("probes in an hour = %d, want one per 2 minutes", n)
		}
		r.mu.Lock()
		if checks := r.checks; checks < 2*1600 || checks > 2*2000 {
			t.Errorf("checks in an hour = %d, want one per 2 s and gateway", checks)
		}
		r.mu.Unlock()
		r.set("b:1", wanfed.FailureRefused)
		r.await(t, 1, 10*time.Second)
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

// TestVerifier_Idle checks that a gateway that no connection uses is reported
// early enough for the status, also one of many.
func TestVerifier_Idle(t *testing.T) {
	testutil.Bubble(t, func(t *testing.T) {
		dc2 := &Datacenter{DC: "dc2", Gateways: []string{"a:1", "b:1"}, Current: 2}
		r := &verifierRig{snap: &Snapshot{Datacenters: []*Datacenter{dc2}}, down: map[string]wanfed.FailureClass{}}
		for i := range 30 {
			r.snap.Datacenters = append(r.snap.Datacenters, &Datacenter{DC: fmt.Sprintf("dc%d", i+3),
				Gateways: []string{fmt.Sprintf("c%d:1", i), "former:1"}, Current: 1 + i%2})
		}
		r.start(t, func(ctx context.Context, _, addr string) wanfed.FailureClass {
			r.mu.Lock()
			class := r.down[addr]
			r.mu.Unlock()
			pause := 20 * time.Millisecond
			if class != "" {
				pause = attemptTimeout
			}
			backoff.Sleep(ctx, pause, nil)
			return class
		})
		for range 50 {
			time.Sleep(10*time.Second + rand.N(20*time.Second))
			r.set("b:1", wanfed.FailureTimeout)
			r.await(t, 1, 8*time.Second)
			r.set("b:1", "")
			r.await(t, 0, 5*time.Second)
		}
	})
}

// TestVerifier_FailedDial checks that a failed connection makes the probe due,
// and that failures of a gateway which flaps do not cause many probes.
func TestVerifier_FailedDial(t *testing.T) {
	testutil.Bubble(t, func(t *testing.T) {
		r := startVerifier(t, &Datacenter{DC: "dc2", Gateways: []string{"a:1", "b:1"}, Current: 2})
		time.Sleep(10 * time.Second) // both have worked
		r.set("b:1", wanfed.FailureRefused)
		r.dialFailed("unknown:1")
		r.dialFailed("b:1")
		r.await(t, 1, 2*time.Second)
		r.set("b:1", "")
		r.await(t, 0, 4*time.Second)

		before, others := r.count("b:1"), r.count("a:1")
		for range 60_000 {
			r.dialFailed("b:1")
			time.Sleep(time.Millisecond)
		}
		if n := r.count("b:1") - before; n < 15 || n > 21 {
			t.Errorf("probes in a minute of failures = %d, want one per %v", n, failedPause)
		}
		if n := r.count("a:1") - others; n > 1 {
			t.Errorf("probes of the other gateway = %d, want none for these failures", n)
		}
		r.set("b:1", wanfed.FailureRefused) // right after a probe, so the next one is delayed
		r.dialFailed("b:1")
		r.await(t, 1, failedPause+2*time.Second)
	})
}

// lossyConnect models the time to connect over a link that loses 1 % of the
// packets and delays each by up to 220 ms. TCP sends a lost packet again after
// 1 s, and then after twice the time.
func lossyConnect(ctx context.Context, random *rand.Rand) wanfed.FailureClass {
	const oneWay, jitter, loss = 20 * time.Millisecond, 200 * time.Millisecond, 0.01
	const lost = 1 - (1-loss)*(1-loss)        // either of two packets
	exchange := func() (took time.Duration) { // one packet in each direction
		for again := time.Second; random.Float64() < lost; again *= 2 {
			took += again
		}
		return took + 2*oneWay + time.Duration(2*random.Float64()*float64(jitter))
	}
	tcp := exchange()
	took := tcp + exchange() + exchange() // the flights of TLS, and the response to the last one
	ctx, cancel := context.WithTimeout(ctx, connectTimeout)
	defer cancel()
	if tcp > attemptTimeout {
		took = attemptTimeout
	}
	backoff.Sleep(ctx, took, nil)
	if tcp > attemptTimeout || ctx.Err() != nil {
		return wanfed.FailureTimeout
	}
	return ""
}

// TestVerifier_LossAndJitter checks that a link with 1 % loss and 200 ms jitter
// causes no report, although connections over it are late all the time.
func TestVerifier_LossAndJitter(t *testing.T) {
	testutil.Bubble(t, func(t *testing.T) {
		addrs := []string{"a:1", "b:1"}
		r := &verifierRig{snap: &Snapshot{Datacenters: []*Datacenter{{DC: "dc2", Gateways: addrs, Current: 2}}}}
		random := rand.New(rand.NewPCG(1, 2))
		conns, late := 0, 0
		r.start(t, func(ctx context.Context, _, _ string) wanfed.FailureClass {
			r.mu.Lock()
			own := rand.New(rand.NewPCG(random.Uint64(), random.Uint64()))
			r.mu.Unlock()
			class := lossyConnect(ctx, own)
			r.mu.Lock()
			defer r.mu.Unlock()
			if conns++; class != "" { // failed, or another one was faster
				late++
			}
			return class
		})
		for range 10 * 3600 {
			time.Sleep(time.Second)
			for _, addr := range addrs {
				r.dialFailed(addr)
			}
			if g := r.report(); len(g) > 0 {
				t.Fatalf("report() = %v, want none", g)
			}
		}
		if conns < 15_000 || late == 0 {
			t.Errorf("connections in 10 hours = %d, of which %d were late; want one per %v and gateway, and late ones",
				conns, late, failedPause)
		}
	})
}

// TestVerifier_AllDialsFail checks that a fault of the local gateway, after which
// the dials of all gateways fail, is not reported, and costs few probes.
func TestVerifier_AllDialsFail(t *testing.T) {
	testutil.Bubble(t, func(t *testing.T) {
		var dcs []*Datacenter
		var all []string
		for i := range 50 {
			addrs := []string{fmt.Sprintf("a%d:1", i), fmt.Sprintf("b%d:1", i)}
			dcs = append(dcs, &Datacenter{DC: fmt.Sprintf("dc%d", i+2), Gateways: addrs, Current: 2})
			all = append(all, addrs...)
		}
		r := startVerifier(t, dcs...)
		time.Sleep(time.Minute)
		before := r.count(all...)
		for _, addr := range all {
			r.set(addr, wanfed.FailureTimeout)
		}
		for range 60 {
			for _, addr := range all {
				r.dialFailed(addr)
			}
			time.Sleep(time.Second)
			if g := r.report(); len(g) > 0 {
				t.Fatalf("report() = %v, want none", g)
			}
		}
		if n, most := r.count(all...)-before, len(all)*60/3+len(all); n > most {
			t.Errorf("probes in a minute = %d, want at most %d", n, most)
		}
	})
}

func TestConnectGateway(t *testing.T) {
	ca := tlstest.NewCA(t)
	id := ca.Identity(t, tlsutil.RoleGateway, "gw1", "dc1")
	server := newDouble(t, ca.Identity(t, tlsutil.RoleServer, "srv1", "dc2"), nil)
	if got := connectGateway(t.Context(), id, verifyTarget{dc: "dc2", addr: server.addr}); got != "" {
		t.Errorf("connectGateway() = %q, want success", got)
	}
	other := newDouble(t, ca.Identity(t, tlsutil.RoleServer, "srv1", "dc3"), nil)
	if got := connectGateway(t.Context(), id, verifyTarget{dc: "dc2", addr: other.addr}); got == "" {
		t.Errorf("connectGateway() of another datacenter = %q, want a failure", got)
	}
	name := verifyTarget{"dc2", strings.Replace(server.addr, "127.0.0.1", "localhost", 1), netaddr.Loopback}
	if got := connectGateway(t.Context(), id, name); got == "" || checkGateway(t.Context(), name) {
		t.Errorf("connectGateway() and checkGateway() of %v work, want no connection to loopback", name)
	}
	if name.refuse = 0; !checkGateway(t.Context(), name) {
		t.Errorf("checkGateway() of %v fails, want a connection", name)
	}
	closed, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	closed.Close()
	if got := connectGateway(t.Context(), id, verifyTarget{dc: "dc2", addr: closed.Addr().String()}); got != wanfed.FailureRefused {
		t.Errorf("connectGateway() of a closed port = %q, want %q", got, wanfed.FailureRefused)
	}
}
