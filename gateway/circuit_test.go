// SPDX-License-Identifier: MPL-2.0

package gateway

import (
	"errors"
	"fmt"
	"io"
	"testing"
	"time"
)

func TestEvidenceKeepsWhatIsInUse(t *testing.T) {
	e := &evidence{}
	var open []*known
	for i := range 2 * maxKnown {
		k, _, err := e.begin(fmt.Sprint("open", i), 1, time.Second, time.Now())
		if err != nil {
			t.Fatal(err)
		}
		e.won(k, time.Millisecond)
		open = append(open, k)
		e.noAnswer(fmt.Sprint("failed", i), 0, time.Now(), time.Second)
	}
	if n := len(e.of); n > 5*maxKnown {
		t.Errorf("%d addresses are known, %d in use", n, len(open))
	}
	for i, k := range open {
		if _, _, err := e.begin(fmt.Sprint("open", i), 1, time.Second, time.Now()); err == nil {
			t.Fatalf("connection %d was forgotten", i)
		}
		e.closed(k)
	}
	for i := range 2 * maxKnown {
		e.noAnswer(fmt.Sprint("failed again", i), 0, time.Now(), time.Second)
	}
	if n := len(e.of); n > 3*maxKnown {
		t.Errorf("%d addresses are known, none in use", n)
	}
}

// TestHalfOpenGoesOn has all that ask a dead address be lost: others must not wait for their end.
func TestHalfOpenGoesOn(t *testing.T) {
	e, now := &evidence{}, time.Now()
	begin := func() error {
		_, _, err := e.begin("a", 0, 250*time.Millisecond, now)
		return err
	}
	for range 2 * halfOpen { // it is not known to be dead
		if err := begin(); err != nil {
			t.Fatal(err)
		}
	}
	e.gaveUp(e.of["a"], true)
	for range 3 {
		if err := begin(); !errors.Is(err, errOpen) {
			t.Errorf("one too many: %v", err)
		}
		now = now.Add(250 * time.Millisecond)
		if err := begin(); err != nil {
			t.Error(err)
		}
	}
	e.worked("a", time.Millisecond)
	for range 2 * halfOpen {
		if err := begin(); err != nil {
			t.Fatal(err)
		}
	}
}

// testCircuit has as many clients as may wait for two upstreams that are taken for dead: the next is told at once, and as soon as one
// more may ask and is answered, all are served.
func testCircuit(t *testing.T, e Engine) {
	one, asked1 := rawUpstream(t, alert)
	two, asked2 := rawUpstream(t, alert)
	p := start(t, Config{Engine: e, attemptDelay: time.Minute}, Route{Match: "x.example", To: []string{one, two}})
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
	ev := &p.dialer.evidence
	var waiting []*known
	for _, addr := range []string{one, two} {
		for range halfOpen + 1 {
			k, _, err := ev.begin(addr, 0, time.Minute, time.Now())
			if err != nil {
				t.Fatal(err)
			}
			waiting = append(waiting, k)
		}
		ev.gaveUp(waiting[len(waiting)-1], true)
		waiting = waiting[:len(waiting)-1]
	}
	if got := answer(); got != 80 || asked1.Load()+asked2.Load() > 0 {
		t.Errorf("one client too many gets alert %d, of the upstreams %d were asked", got, asked1.Load()+asked2.Load())
	}
	for _, k := range waiting[:1] {
		ev.gaveUp(k, false)
	}
	for range 2 * halfOpen {
		if got := answer(); got != 112 {
			t.Errorf("a client gets alert %d", got)
		}
	}
	if asked1.Load() == 0 || asked2.Load() > 0 {
		t.Errorf("%d times asked was the one that works, %d times the other", asked1.Load(), asked2.Load())
	}
	for _, k := range waiting[1:] {
		ev.gaveUp(k, false)
	}
	until(t, func() bool { return p.side.Stats().Active == 0 })
	p.stop()
	p.refused(t, map[Reason]uint64{ReasonUpstreamUnreachable: 1})
}

// checkUnused fails if a gateway that has stopped still counts connections to an upstream. Every test of one ends with it.
func checkUnused(t testing.TB, p *Proxy) {
	t.Helper()
	for addr, k := range p.dialer.evidence.of {
		if k.tries != 0 || k.open != 0 {
			t.Errorf("%s has %d attempts and %d connections", addr, k.tries, k.open)
		}
	}
}

func testMaxPerUpstream(t *testing.T, e Engine) {
	one, two := upstream(t, named("srv1")), upstream(t, named("srv2"))
	p := start(t, Config{Engine: e, attemptDelay: time.Minute, MaxPerUpstream: 1},
		Route{Match: "one.example", To: []string{one}}, Route{Match: "both.example", To: []string{one, two}, Ordered: true})
	p.patient(one, two)
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
	until(t, func() bool { return p.side.Stats().Active == 2 })
	if _, ok := p.from(t, "127.0.0.1", "one.example"); ok {
		t.Error("served above the lower limit")
	}
	p.SetMaxPerUpstream(0)
	p.connect(t, "one.example", 4)
	p.stop()
}
