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

// TestChaosPrimaryCut cuts the primary's only gateway from the WAN. Who is cut
// off is called failed in time, the secondaries must never call each other so,
// and when the path is back all must be alive again at once, without a restart.
func TestChaosPrimaryCut(t *testing.T) {
	alongside(t)
	if !long() {
		cutPrimary(t, 1, 20*time.Second)
		return
	}
	for _, tc := range []struct {
		servers int // of each datacenter
		cut     time.Duration
	}{{1, time.Minute}, {3, time.Minute}, {3, 10 * time.Minute}} {
		t.Run(fmt.Sprintf("%d servers, %v", tc.servers, tc.cut), func(t *testing.T) { cutPrimary(t, tc.servers, tc.cut) })
	}
}

func cutPrimary(t *testing.T, servers int, cut time.Duration) {
	l := lab.NewWAN(t, wan.Link{Delay: oneWay})
	dc1, dc2, dc3 := l.Add(servers, 1), l.Add(servers, 1), l.Add(servers, 1)
	for _, dc := range l.Datacenters() {
		dc.Start()
	}
	awaitWhole(t, l, 30*time.Second, "start")
	asks := []*asker{
		askAcross(t, dc1.Servers[0], dc2.Name), askAcross(t, dc2.Servers[0], dc1.Name), askAcross(t, dc2.Servers[0], dc3.Name),
	}
	before := pids(l)
	stalls, start := lab.WatchStalls(t), time.Now()
	<-time.After(byForm(time.Second, 10*time.Second))

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
	t.Logf("all alive %v after the path was back", ms(alive))
	whole := max(alive, awaitWhole(t, l, promptly, "path back")+alive)
	if alive > backAlive {
		t.Errorf("all alive %v after the path was back, want %v", ms(alive), backAlive)
	}
	<-time.After(byForm(300*time.Millisecond, 5*time.Second))
	t.Logf("this machine stood still for %v at most, since the path was back %v", stalls.Worst(start), stalls.Worst(healed))

	judgeCut(t, l, watch.stop(), cut)
	if after := pids(l); !slices.Equal(before, after) {
		t.Errorf("processes %v became %v", before, after)
	}
	for _, a := range asks {
		a.stop()
		b := a.figures(answeredBefore(broken), start, time.Hour)
		t.Logf("%s before: %v", a.name, b)
		t.Logf("%s during: %v", a.name, a.figures(duringTime(broken, healed), broken, b.p99+maxRise))
		t.Logf("%s after: %v", a.name, a.figures(duringTime(healed, time.Now()), healed, b.p99+maxRise))
		if f := a.figures(func(r answer) bool { return r.at.After(healed.Add(whole)) }, healed, b.p99+maxRise); f.failed > 0 {
			t.Errorf("%s, when all was whole again: %v", a.name, f)
		}
	}
	between := asks[2].figures(duringTime(broken, healed), broken, askLimit)
	if between.failed > 0 {
		t.Errorf("between the secondaries, whose way was not cut: %v", between)
	}
}

// judgeCut: of two servers with the cut between them, each calls the other one
// failed in time; nobody else is called so.
func judgeCut(t *testing.T, l *lab.Lab, seen map[sighting]time.Duration, cut time.Duration) {
	t.Helper()
	primary := l.Datacenters()[0].Name
	inPrimary := func(name string) bool { return strings.HasSuffix(name, "."+primary) }
	var took []time.Duration
	for m, at := range seen {
		if inPrimary(m.by) == inPrimary(m.member) {
			t.Errorf("%s called %s %s after %v: the way between them was not cut", m.by, m.member, m.status, at)
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
	t.Logf("%d of %d called failed after %v", len(took), want, took)
	if cut >= failure && len(took) < want || len(took) > 0 && took[len(took)-1] > failure {
		t.Errorf("not all that were cut off for %v were called failed within %v", cut, failure)
	}
}

// pids lists the processes that run.
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

// TestChaosLoss federates over a WAN that loses one packet in a hundred each
// way.
func TestChaosLoss(t *testing.T) {
	alongside(t)
	var took []time.Duration
	rounds := 1
	if long() {
		rounds = 10
	}
	for range rounds {
		took = append(took, federateWithLoss(t))
	}
	slices.Sort(took)
	t.Logf("whole with 1 %% loss each way after %v", took)
}

func federateWithLoss(t *testing.T) time.Duration {
	t.Helper()
	l := lab.NewWAN(t, wan.Link{Delay: oneWay, Loss: 0.01})
	capture := l.Capture()
	dc1, dc2 := l.Add(1, 1), l.Add(1, 1)
	dc1.Start()
	dc2.Start()
	took := awaitWhole(t, l, 30*time.Second, "start with loss")
	a := askAcross(t, dc1.Servers[0], dc2.Name)
	b := askAcross(t, dc2.Servers[0], dc1.Name)
	start := time.Now()
	<-time.After(byForm(2*time.Second, 20*time.Second))
	var lost []string
	eachPath(l, func(p *wan.Path) {
		s := p.Stats()
		lost = append(lost, fmt.Sprintf("%d of %d", s.Lost, s.Sent))
	})
	for _, a := range []*asker{a, b} {
		a.stop()
		f := a.figures(duringTime(start, time.Now()), start, oneWay*2+maxRise)
		t.Logf("%s: %v; packets lost: %s", a.name, f, strings.Join(lost, ", "))
		if f.failed > 0 {
			t.Errorf("%s: %v", a.name, f)
		}
	}
	if r := capture.Check(t, lab.WANPort); r.Records == 0 {
		t.Error("the capture saw no TLS record")
	}
	return took
}
