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

// Two upstreams have failed, and as many clients as may wait try them. Another
// client is refused at once. When one more may try and is answered, all clients
// are served.
func testCircuitBreaker(t *testing.T, e engineKind) {
	one, tried1 := rawUpstream(t, alert)
	two, tried2 := rawUpstream(t, alert)
	p := start(t, Config{engine: e, attemptDelay: time.Minute}, Route{Match: "x.example", To: []string{one, two}})
	hello := helloFor(t, "x.example")
	answer := func() byte { // of the alert
		c := p.raw(t)
		defer c.Close()
		c.Write(hello)
		b := make([]byte, 7)
		if _, err := io.ReadFull(c, b); err != nil {
			t.Fatal(err)
		}
		return b[6]
	}
	// Other clients wait for both addresses, as many as may.
	now := time.Now()
	var waiting []*upstream.Selection
	for _, addr := range []string{one, two} {
		for i := range trialClients + 1 {
			s := &upstream.Selection{}
			s.Init(p.dialer, []string{addr}, upstream.InOrder, nil, now)
			if _, _, ok := s.Next(now); !ok {
				t.Fatal(s.Err())
			}
			if i == trialClients {
				s.Failed(0, errors.New("refused"), now)
			} else {
				waiting = append(waiting, s)
			}
		}
	}
	if got := answer(); got != 80 || tried1.Load()+tried2.Load() > 0 {
		t.Errorf("a client above the limit got alert %d after %d attempts, want 80 after 0", got, tried1.Load()+tried2.Load())
	}
	waiting[0].Cancel()
	for range 2 * trialClients {
		if got := answer(); got != 112 {
			t.Errorf("a client got alert %d, want 112", got)
		}
	}
	if tried1.Load() == 0 || tried2.Load() > 0 {
		t.Errorf("the upstreams were tried %d and %d times, want some and 0", tried1.Load(), tried2.Load())
	}
	for _, s := range waiting[1:] {
		s.Cancel()
	}
	testutil.Eventually(t, waitLimit, func() bool { return p.listener.Stats().Active == 0 }, "no active connection")
	p.stop()
	p.refused(t, map[Reason]uint64{ReasonUpstreamUnreachable: 1})
}

// checkUnused fails the test if a stopped gateway still counts connections to
// an upstream.
func checkUnused(t testing.TB, p *Proxy) {
	t.Helper()
	if pending, open := p.dialer.Pending(), p.dialer.Conns(); pending != 0 || len(open) != 0 {
		t.Errorf("%d attempts and connections %v are left, want none", pending, open)
	}
}

func testMaxPerUpstream(t *testing.T, e engineKind) {
	one, two := tlsUpstream(t, named("srv1")), tlsUpstream(t, named("srv2"))
	p := start(t, Config{engine: e, attemptDelay: time.Minute, MaxPerUpstream: 1},
		Route{Match: "one.example", To: []string{one}}, Route{Match: "both.example", To: []string{one, two}, Ordered: true})
	p.setSlow(one, two)
	first, _ := p.connect(t, "one.example", 4)
	if _, name := p.connect(t, "both.example", 4); name != "srv2" {
		t.Errorf("connected to %s, want srv2: srv1 is at its limit", name)
	}
	for _, sni := range []string{"one.example", "both.example"} {
		if _, ok := p.from(t, "127.0.0.1", sni); ok {
			t.Errorf("%s was served above the limit", sni)
		}
	}
	p.refused(t, map[Reason]uint64{ReasonUpstreamLimit: 2})
	p.SetMaxPerUpstream(2)
	if _, name := p.connect(t, "both.example", 4); name != "srv1" {
		t.Errorf("connected to %s, want srv1", name)
	}
	p.SetMaxPerUpstream(1)
	first.Close()
	testutil.Eventually(t, waitLimit, func() bool { return p.listener.Stats().Active == 2 }, "two active connections")
	if _, ok := p.from(t, "127.0.0.1", "one.example"); ok {
		t.Error("a connection above the lower limit was served")
	}
	p.SetMaxPerUpstream(0)
	p.connect(t, "one.example", 4)
	p.stop()
}
