// SPDX-License-Identifier: MPL-2.0

package test

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/wanfed/wanfed/api"
	"github.com/wanfed/wanfed/internal/testutil"
	"github.com/wanfed/wanfed/test/lab"
	"github.com/wanfed/wanfed/test/lab/wan"
)

// TestChaosPrimaryCut cuts the primary's only gateway from the WAN. Servers on
// both sides of the cut mark each other failed in time. The secondaries must
// never mark each other failed. When the cut ends, all servers must be alive
// again at once, without a restart.
func TestChaosPrimaryCut(t *testing.T) {
	parallelUnlessChaos(t)
	if !long() {
		cutPrimary(t, 1, 20*time.Second)
		return
	}
	for _, tc := range []struct {
		servers int // of each datacenter
		cut     time.Duration
	}{{1, time.Minute}, {3, time.Minute}, {3, 10 * time.Minute}} {
		t.Run(fmt.Sprintf("%d servers, %v", tc.servers, tc.cut), func(t *testing.T) {
			cutPrimary(t, tc.servers, tc.cut)
		})
	}
}

func cutPrimary(t *testing.T, servers int, cut time.Duration) {
	l := lab.NewWAN(t, wan.Link{Delay: oneWay})
	dc1, dc2, dc3 := l.Add(servers, 1), l.Add(servers, 1), l.Add(servers, 1)
	for _, dc := range l.Datacenters() {
		dc.Start()
	}
	awaitWhole(t, l, 30*time.Second, "start")
	requesters := []*requester{
		requestAcross(t, dc1.Servers[0], dc2.Name), requestAcross(t, dc2.Servers[0], dc1.Name),
		requestAcross(t, dc2.Servers[0], dc3.Name),
	}
	before := pids(l)
	stalls, start := lab.WatchStalls(t), time.Now()
	<-time.After(longOrShort(time.Second, 10*time.Second))

	watch := watchGossip(t, l.Running())
	broken := time.Now()
	dc1.Gateways[0].CutWAN()
	<-time.After(cut)
	healed := time.Now()
	dc1.Gateways[0].HealWAN()
	alive := testutil.Await(t, 2*failure, "all alive", func(ctx context.Context) error {
		for _, s := range l.Running() {
			if err := allAlive(ctx, l, s); err != nil {
				return fmt.Errorf("%s: %w", s.WANName(), err)
			}
		}
		return nil
	})
	t.Logf("all alive %v after the end of the cut", ms(alive))
	whole := max(alive, awaitWhole(t, l, promptly, "path back")+alive)
	if alive > aliveWithin {
		t.Errorf("all alive %v after the end of the cut, want at most %v", ms(alive), aliveWithin)
	}
	<-time.After(longOrShort(300*time.Millisecond, 5*time.Second))
	t.Logf("worst stall of this machine: %v; since the end of the cut: %v", stalls.Worst(start), stalls.Worst(healed))

	judgeCut(t, l, watch.stop(), cut)
	if after := pids(l); !slices.Equal(before, after) {
		t.Errorf("process ids = %v, want %v: a process restarted", after, before)
	}
	for _, a := range requesters {
		a.stop()
		b := a.figures(completedBefore(broken), start, time.Hour)
		t.Logf("%s before: %v", a.name, b)
		t.Logf("%s during: %v", a.name, a.figures(overlapping(broken, healed), broken, b.p99+maxRise))
		t.Logf("%s after: %v", a.name, a.figures(overlapping(healed, time.Now()), healed, b.p99+maxRise))
		if f := a.figures(func(r response) bool { return r.at.After(healed.Add(whole)) }, healed,
			b.p99+maxRise); f.failed > 0 {
			t.Errorf("%s, after the recovery: %v; want no failure", a.name, f)
		}
	}
	between := requesters[2].figures(overlapping(broken, healed), broken, requestTimeout)
	if between.failed > 0 {
		t.Errorf("between the secondaries, which were not cut: %v; want no failure", between)
	}
}

// judgeCut fails the test unless servers on different sides of the cut marked
// each other failed in time, and no other server was marked failed.
func judgeCut(t *testing.T, l *lab.Lab, seen map[observation]time.Duration, cut time.Duration) {
	t.Helper()
	primary := l.Datacenters()[0].Name
	inPrimary := func(name string) bool { return strings.HasSuffix(name, "."+primary) }
	var took []time.Duration
	for m, at := range seen {
		if inPrimary(m.by) == inPrimary(m.member) {
			t.Errorf("%s saw %s %s after %v, want it alive: they were not cut", m.by, m.member, m.status, at)
		} else if m.status == api.MemberFailed.String() {
			took = append(took, at)
		}
	}
	want := 0
	for _, a := range l.Running() {
		for _, b := range l.Running() {
			if inPrimary(a.WANName()) != inPrimary(b.WANName()) {
				want++
			}
		}
	}
	slices.Sort(took)
	t.Logf("%d of %d pairs marked failed after %v", len(took), want, took)
	if cut >= failure && len(took) < want || len(took) > 0 && took[len(took)-1] > failure {
		t.Errorf("%d of %d pairs marked failed during a cut of %v, want all within %v", len(took), want, cut, failure)
	}
}

// pids returns the ids of the running processes.
func pids(l *lab.Lab) (out []int) {
	for _, dc := range l.Datacenters() {
		for _, n := range dc.Nodes() {
			if n.Running() {
				out = append(out, n.Process.Pid())
			}
		}
	}
	return out
}

// TestChaosLoss federates over a WAN that loses one percent of the packets in
// each direction.
func TestChaosLoss(t *testing.T) {
	parallelUnlessChaos(t)
	var took []time.Duration
	rounds := 1
	if long() {
		rounds = 10
	}
	for range rounds {
		took = append(took, federateWithLoss(t))
	}
	slices.Sort(took)
	t.Logf("federated with 1 %% loss in each direction after %v", took)
}

func federateWithLoss(t *testing.T) time.Duration {
	t.Helper()
	l := lab.NewWAN(t, wan.Link{Delay: oneWay, Loss: 0.01})
	capture := l.Capture()
	dc1, dc2 := l.Add(1, 1), l.Add(1, 1)
	dc1.Start()
	dc2.Start()
	took := awaitWhole(t, l, 30*time.Second, "start with loss")
	a := requestAcross(t, dc1.Servers[0], dc2.Name)
	b := requestAcross(t, dc2.Servers[0], dc1.Name)
	start := time.Now()
	<-time.After(longOrShort(2*time.Second, 20*time.Second))
	var lost []string
	eachPath(l, func(p *wan.Path) {
		s := p.Stats()
		lost = append(lost, fmt.Sprintf("%d of %d", s.Lost, s.Sent))
	})
	for _, a := range []*requester{a, b} {
		a.stop()
		f := a.figures(overlapping(start, time.Now()), start, oneWay*2+maxRise)
		t.Logf("%s: %v; packets lost: %s", a.name, f, strings.Join(lost, ", "))
		if f.failed > 0 {
			t.Errorf("%s: %v; want no failure", a.name, f)
		}
	}
	if r := capture.Check(t, lab.WANPort); r.Records == 0 {
		t.Error("captured 0 TLS records, want some")
	}
	return took
}
