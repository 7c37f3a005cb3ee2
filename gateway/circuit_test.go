// SPDX-License-Identifier: MPL-2.0

package gateway

import (
	"errors"
	"io"
	"testing"
	"time"

	"github.com/wanfed/wanfed/gateway/internal/upstream"
	"github.com/wanfed/wanfed/internal/testutil"
)

// trialClients is the limit of clients that try an address which failed.
const trialClients = 16

// Two upstreams have failed, and trialClients clients try each of them. Another
// client is refused at once. When one attempt ends, one more client may try.
// Its success serves all clients.
func testCircuitBreaker(t *testing.T, e engineKind) {
	one, tried1 := rawUpstream(t, alert)
	two, tried2 := rawUpstream(t, alert)
	p := start(t, Config{portable: e == portable, attemptDelay: time.Minute},
		Route{Match: "x.example", To: []string{one, two}})
	hello := helloFor(t, "x.example")
	alertOf := func() byte { // returns the alert that a client receives
		c := p.raw(t)
		defer c.Close()
		c.Write(withNewRandom(hello))
		b := make([]byte, 7)
		if _, err := io.ReadFull(c, b); err != nil {
			t.Fatalf("read of the alert = %v, want nil", err)
		}
		return b[6]
	}
	// Other clients wait for both addresses.
	now := time.Now()
	var waiting []*upstream.Selection
	for _, addr := range []string{one, two} {
		for i := range trialClients + 1 {
			s := &upstream.Selection{}
			s.Init(p.dialer, []string{addr}, upstream.InOrder, nil, now)
			if _, _, ok := s.Next(now); !ok {
				t.Fatalf("Next() for client %d = %v, want an attempt", i, s.Err())
			}
			if i == trialClients {
				s.Failed(0, errors.New("refused"), now)
			} else {
				waiting = append(waiting, s)
			}
		}
	}
	if got := alertOf(); got != 80 || tried1.Load()+tried2.Load() > 0 {
		t.Errorf("alert for a client above the limit = %d after %d attempts, want 80 after 0", got,
			tried1.Load()+tried2.Load())
	}
	waiting[0].Cancel()
	for range 2 * trialClients {
		if got := alertOf(); got != 112 {
			t.Errorf("alert for a client after the recovery = %d, want 112", got)
		}
	}
	if tried1.Load() == 0 || tried2.Load() > 0 {
		t.Errorf("attempts at the upstreams = %d and %d, want some and 0", tried1.Load(), tried2.Load())
	}
	for _, s := range waiting[1:] {
		s.Cancel()
	}
	testutil.Eventually(t, waitLimit, func() bool { return p.listener.Stats().Active == 0 }, "no active connection")
	p.stop()
	p.refused(t, map[Reason]uint64{ReasonUpstreamUnreachable: 1})
}

// checkUnused checks that a stopped gateway counts no connections to upstreams.
func checkUnused(t testing.TB, p *Proxy) {
	t.Helper()
	if pending, open := p.dialer.Pending(), p.dialer.Conns(); pending != 0 || len(open) != 0 {
		t.Errorf("Pending(), Conns() after Run = %d, %v; want none", pending, open)
	}
}

func testMaxPerUpstream(t *testing.T, e engineKind) {
	one, two := tlsUpstream(t, named("srv1")), tlsUpstream(t, named("srv2"))
	p := start(t, Config{portable: e == portable, attemptDelay: time.Minute, MaxPerUpstream: 1},
		Route{Match: "one.example", To: []string{one}},
		Route{Match: "both.example", To: []string{one, two}, Ordered: true})
	p.setSlow(one, two)
	first, _ := p.connect(t, "one.example", 4)
	if _, name := p.connect(t, "both.example", 4); name != "srv2" {
		t.Errorf("upstream with srv1 at its limit = %s, want srv2", name)
	}
	for _, sni := range []string{"one.example", "both.example"} {
		if _, ok := p.from(t, "127.0.0.1", sni); ok {
			t.Errorf("connection to %s above the limit: served = %v, want false", sni, ok)
		}
	}
	p.refused(t, map[Reason]uint64{ReasonUpstreamLimit: 2})
	p.SetMaxPerUpstream(2)
	if _, name := p.connect(t, "both.example", 4); name != "srv1" {
		t.Errorf("upstream with a limit of 2 = %s, want srv1", name)
	}
	p.SetMaxPerUpstream(1)
	first.Close()
	testutil.Eventually(t, waitLimit, func() bool { return p.listener.Stats().Active == 2 }, "two active connections")
	if _, ok := p.from(t, "127.0.0.1", "one.example"); ok {
		t.Error("connection above the lower limit: served = true, want false")
	}
	p.SetMaxPerUpstream(0)
	p.connect(t, "one.example", 4)
	p.stop()
}
