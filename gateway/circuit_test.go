// SPDX-License-Identifier: MPL-2.0

package gateway

import (
	"fmt"
	"io"
	"net"
	"sync"
	"sync/atomic"
	"testing"
	"time"
)

func TestEvidenceKeepsWhatIsInUse(t *testing.T) {
	e := &evidence{}
	var open []*known
	for i := range 2 * maxKnown {
		k, _, err := e.begin(fmt.Sprint("open", i), 1, time.Second)
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
		if _, _, err := e.begin(fmt.Sprint("open", i), 1, time.Second); err == nil {
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

// answered says whether a client of x.example gets an answer, and after how long it knows.
func (r *running) answered(t testing.TB, hello []byte) (bool, time.Duration) {
	c := r.raw(t)
	defer c.Close()
	began := time.Now()
	c.Write(hello)
	b := make([]byte, 7)
	_, err := io.ReadFull(c, b)
	return err == nil && b[6] == 112, time.Since(began)
}

// testCircuit has a crowd ask for two upstreams that say nothing: only some may wait for them. When they are back, all are served.
func testCircuit(t *testing.T, e Engine) {
	const timeout, crowd = 200 * time.Millisecond, 100
	var works atomic.Bool
	var waiting, most atomic.Int64
	says := func(c *net.TCPConn) {
		if works.Load() {
			alert(c)
			return
		}
		for n := waiting.Add(1); ; {
			if was := most.Load(); n <= was || most.CompareAndSwap(was, n) {
				break
			}
		}
		silent(c)
		waiting.Add(-1)
	}
	one, _ := rawUpstream(t, says)
	two, _ := rawUpstream(t, says)
	p := start(t, Config{Engine: e, DialTimeout: timeout, DialStagger: 20 * time.Millisecond}, Route{Match: "x.example", To: []string{one, two}})
	hello := helloFor(t, "x.example")
	if ok, _ := p.answered(t, hello); ok {
		t.Fatal("a silent upstream answers")
	}
	var at atomic.Int64 // refused at once
	ask := func() (served int64) {
		var wg sync.WaitGroup
		var n atomic.Int64
		for range crowd {
			wg.Go(func() {
				ok, took := p.answered(t, hello)
				if ok {
					n.Add(1)
				} else if took < timeout {
					at.Add(1)
				}
			})
		}
		wg.Wait()
		return n.Load()
	}
	if served := ask(); served != 0 || most.Load() > 2*halfOpen {
		t.Errorf("%d were served, %d waited at once", served, most.Load())
	}
	if at.Load() < crowd/2 {
		t.Errorf("only %d of %d did not have to wait", at.Load(), crowd)
	}
	works.Store(true)
	if ok, _ := p.answered(t, hello); !ok {
		t.Error("the next client is not served")
	}
	if served := ask(); served != crowd {
		t.Errorf("%d of %d were served", served, crowd)
	}
	until(t, func() bool { return p.side.Stats().Active == 0 })
	p.stop()
	checkUnused(t, p)
}

// checkUnused fails if the gateway still counts connections to an upstream.
func checkUnused(t testing.TB, p *running) {
	t.Helper()
	for addr, k := range p.dialer.evidence.of {
		if k.tries != 0 || k.open != 0 {
			t.Errorf("%s has %d attempts and %d connections", addr, k.tries, k.open)
		}
	}
}

func testMaxPerUpstream(t *testing.T, e Engine) {
	one, two := upstream(t, named("srv1")), upstream(t, named("srv2"))
	p := start(t, Config{Engine: e, MaxPerUpstream: 1},
		Route{Match: "one.example", To: []string{one}}, Route{Match: "both.example", To: []string{one, two}, Ordered: true})
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
	checkUnused(t, p)
}
