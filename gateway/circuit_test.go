// SPDX-License-Identifier: MPL-2.0

package gateway

import (
	"errors"
	"github.com/wanfed/wanfed/gateway/internal/upstream"
	"io"
	"testing"
	"time"
)

// trialClients is the limit of clients that try an address which failed.
const trialClients = 16

// testCircuit has as many clients as may wait for two upstreams that are taken for dead: the next is told at once, and as soon as one
// more may ask and is answered, all are served.
func testCircuit(t *testing.T, e engineKind) {
	one, asked1 := rawUpstream(t, alert)
	two, asked2 := rawUpstream(t, alert)
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
	if got := answer(); got != 80 || asked1.Load()+asked2.Load() > 0 {
		t.Errorf("one client too many gets alert %d, of the upstreams %d were asked", got, asked1.Load()+asked2.Load())
	}
	waiting[0].Cancel()
	for range 2 * trialClients {
		if got := answer(); got != 112 {
			t.Errorf("a client gets alert %d", got)
		}
	}
	if asked1.Load() == 0 || asked2.Load() > 0 {
		t.Errorf("%d times asked was the one that works, %d times the other", asked1.Load(), asked2.Load())
	}
	for _, s := range waiting[1:] {
		s.Cancel()
	}
	until(t, func() bool { return p.listener.Stats().Active == 0 })
	p.stop()
	p.refused(t, map[Reason]uint64{ReasonUpstreamUnreachable: 1})
}

// checkUnused fails if a gateway that has stopped still counts connections to an upstream. Every test of one ends with it.
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
		t.Errorf("%s has one more than it may", name)
	}
	for _, sni := range []string{"one.example", "both.example"} {
		if _, ok := p.from(t, "127.0.0.1", sni); ok {
			t.Errorf("%s: served above the limit", sni)
		}
	}
	p.refused(t, map[Reason]uint64{ReasonUpstreamLimit: 2})
	p.SetMaxPerUpstream(2)
	if _, name := p.connect(t, "both.example", 4); name != "srv1" {
		t.Errorf("%s, want srv1", name)
	}
	p.SetMaxPerUpstream(1)
	first.Close()
	until(t, func() bool { return p.listener.Stats().Active == 2 })
	if _, ok := p.from(t, "127.0.0.1", "one.example"); ok {
		t.Error("served above the lower limit")
	}
	p.SetMaxPerUpstream(0)
	p.connect(t, "one.example", 4)
	p.stop()
}
