// SPDX-License-Identifier: MPL-2.0

package test

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/wanfed/wanfed/api"
	"github.com/wanfed/wanfed/test/lab"
)

// TestBlackHoledGateway makes one of dc2's two gateways drop every packet on
// both interfaces, and then heals it. The long variant lasts longer than it
// takes to mark a member failed. Requests must succeed throughout, and no
// member may be marked failed.
func TestBlackHoledGateway(t *testing.T) {
	t.Parallel()
	lab.NeedNFT(t)
	overGateways(t, blackHoledGateway, lab.MixedEnvoys)
}

func blackHoledGateway(t *testing.T, envoys lab.Envoys) {
	l := lab.New(t)
	l.Envoys = envoys
	dc1, dc2 := l.Add(1, 1), l.Add(1, 2)
	dc1.Start()
	dc2.Start()
	awaitWhole(t, l, promptly, "start")
	a, b := dc1.Servers[0], dc2.Servers[0]

	before := load(t, 2*time.Second, a, b)
	dc2.Gateways[0].BlackHole()
	during := load(t, longer(60*time.Second, 12*time.Second), a, b)
	if err := allAlive(t.Context(), l, a); err != nil {
		t.Errorf("members of %s during the black hole: %v", a.WANName(), err)
	}
	if err := allAlive(t.Context(), l, b); err != nil {
		t.Errorf("members of %s during the black hole: %v", b.WANName(), err)
	}
	dc2.Gateways[0].Heal()
	awaitWhole(t, l, promptly, "healed")
	after := load(t, 2*time.Second, a, b)

	for _, f := range []struct {
		when string
		s    sample
	}{{"before", before}, {"during", during}, {"after", after}} {
		t.Logf("%s: %v", f.when, f.s)
		if f.s.failed > 0 {
			t.Errorf("%s: %d requests failed, want 0; first error: %v", f.when, f.s.failed, f.s.err)
		}
		if f.s.notAlive > 0 {
			t.Errorf("%s: a member was not alive in %d samples, want 0", f.when, f.s.notAlive)
		}
	}
	if longest := during.longest(); longest > 3*time.Second {
		t.Errorf("longest request during the black hole = %v, want at most 3s", longest)
	}
}

// sample is the outcome of requests at a fixed rate.
type sample struct {
	took     []time.Duration // sorted
	failed   int
	err      error // of the first failed request
	notAlive int   // samples in which a member of the other datacenter was not alive
}

func (s sample) longest() time.Duration { return s.took[len(s.took)-1] }

func (s sample) String() string {
	at := func(p int) time.Duration { return s.took[(len(s.took)-1)*p/100].Round(100 * time.Microsecond) }
	return fmt.Sprintf("%d requests, p50 %v, p99 %v, longest %v, %d failed", len(s.took), at(50), at(99),
		at(100), s.failed)
}

// load sends requests from a to the datacenter of b and from b to that of a,
// twenty per second each, without waiting for responses. Stalls of this machine
// do not count.
func load(t *testing.T, d time.Duration, a, b *lab.Node) sample {
	t.Helper()
	stalls := lab.WatchStalls(t)
	var mu sync.Mutex
	var s sample
	var wg sync.WaitGroup
	request := func(from, to *lab.Node) {
		ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
		defer cancel()
		began := time.Now()
		var peers []string
		err := from.Get(ctx, "/v1/status/peers?dc="+to.DC().Name, &peers)
		took := stalls.Awake(began)
		members, merr := wanMembers(ctx, from)
		mu.Lock()
		defer mu.Unlock()
		s.took = append(s.took, took)
		if err != nil {
			if s.failed == 0 {
				s.err = err
			}
			s.failed++
		}
		if merr == nil && members[to.WANName()].Status != api.MemberAlive {
			s.notAlive++
		}
	}
	tick := time.NewTicker(50 * time.Millisecond)
	defer tick.Stop()
	for end := time.After(d); ; {
		select {
		case <-tick.C:
			wg.Go(func() { request(a, b) })
			wg.Go(func() { request(b, a) })
			continue
		case <-end:
		}
		break
	}
	wg.Wait()
	slices.Sort(s.took)
	return s
}
