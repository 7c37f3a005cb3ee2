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
	"github.com/wanfed/wanfed/test/lab"
	"github.com/wanfed/wanfed/test/lab/wan"
)

// chaosLab is dc1 with a server and two gateways, and dc2 with three servers
// and a gateway, 80 ms apart.
type chaosLab struct {
	*lab.Lab
	near, far *lab.Datacenter
}

func newChaosLab(t *testing.T) chaosLab {
	t.Helper()
	l := lab.NewWAN(t, wan.Link{Delay: oneWay})
	c := chaosLab{Lab: l, near: l.Add(1, 2), far: l.Add(3, 1)}
	c.near.Start()
	c.far.Start()
	awaitWhole(t, l, 30*time.Second, "start")
	return c
}

// fault breaks one of two paths between two datacenters. victim is the gateway
// of dc1 that its requests use. begin returns a function that ends the fault,
// and the server that is down during it, if any.
type fault struct {
	name  string
	begin func(t *testing.T, c chaosLab, victim *lab.Node) (heal func(), down *lab.Node)
}

var faults = []fault{
	{"gateway black-holed", func(_ *testing.T, _ chaosLab, g *lab.Node) (func(), *lab.Node) {
		g.CutWAN()
		return g.HealWAN, nil
	}},
	{"gateway suspended", func(_ *testing.T, _ chaosLab, g *lab.Node) (func(), *lab.Node) {
		g.Suspend()
		return g.Resume, nil
	}},
	{"gateway replaced by one that is silent", standInFault(lab.Silent)},
	{"gateway replaced by one that hangs up", standInFault(lab.HangUp)},
	{"gateway replaced by one that trickles", standInFault(lab.Trickle)},
	{"far server suspended", suspendResponder},
}

// moreFaults belong to the long form only.
var moreFaults = []fault{
	{"gateway cut one way, away from it", func(t *testing.T, c chaosLab, g *lab.Node) (func(), *lab.Node) {
		return cutOneWay(t, c.WANLink(g, c.far.Gateways[0]).There), nil
	}},
	{"gateway cut one way, towards it", func(t *testing.T, c chaosLab, g *lab.Node) (func(), *lab.Node) {
		return cutOneWay(t, c.WANLink(g, c.far.Gateways[0]).Back), nil
	}},
}

func cutOneWay(t *testing.T, p *wan.Path) (heal func()) {
	t.Helper()
	set := func(cut bool) {
		link := p.Link()
		link.Cut = cut
		if err := p.Set(link); err != nil {
			t.Fatal(err)
		}
	}
	set(true)
	return func() { set(false) }
}

func standInFault(m lab.Behaviour) func(*testing.T, chaosLab, *lab.Node) (func(), *lab.Node) {
	return func(t *testing.T, _ chaosLab, g *lab.Node) (func(), *lab.Node) {
		g.Kill()
		s := g.StandIn(m)
		return func() {
			t.Logf("the stand-in accepted %d connections", s.Accepted())
			s.Stop()
			g.StartGateway()
		}, nil
	}
}

// suspendResponder suspends the server of dc2 that serves dc1's requests.
func suspendResponder(t *testing.T, c chaosLab, _ *lab.Node) (func(), *lab.Node) {
	t.Helper()
	var st api.Status
	ctx, cancel := context.WithTimeout(t.Context(), requestTimeout)
	defer cancel()
	if err := c.near.Servers[0].Get(ctx, api.StatusPath+"?dc="+c.far.Name, &st); err != nil {
		t.Fatal(err)
	}
	for _, s := range c.far.Servers {
		if s.Name == st.Node {
			t.Logf("%s serves the requests; the leader is %s", s.WANName(), st.Leader)
			s.Suspend()
			return s.Resume, s
		}
	}
	t.Fatalf("%s has no server %q", c.far.Name, st.Node)
	return nil, nil
}

// TestChaosGateway breaks one of two paths between datacenters. No error of the
// network reports the fault to the servers. Requests must use the other path,
// no server may mark a live server failed, and the federation must recover when
// the fault ends.
func TestChaosGateway(t *testing.T) {
	parallelUnlessChaos(t)
	var shared chaosLab
	all := faults
	if long() {
		all = append(slices.Clone(faults), moreFaults...)
	} else { // one lab for all: each fault hits the path that is in use then
		shared = newChaosLab(t)
	}
	for _, f := range all {
		t.Run(f.name, func(t *testing.T) {
			if long() {
				withoutStalls(t, func(t *testing.T) []string { return newChaosLab(t).run(t, f) })
				return
			}
			for _, fault := range shared.run(t, f) {
				t.Error(fault)
			}
		})
	}
}

// run breaks a path with f, repairs it, and returns the violations.
func (c chaosLab) run(t *testing.T, f fault) (faults []string) {
	requesters := []*requester{requestAcross(t, c.near.Servers[0], c.far.Name),
		requestAcross(t, c.far.Servers[0], c.near.Name)}
	start := time.Now()
	victim, in := gatewaysInUse(t, c.Lab, c.near, c.far)
	t.Logf("victim: %s; it also carries dc2's requests: %v", victim.Name, in == victim)
	<-time.After(longOrShort(0, 9*time.Second))

	watch := watchGossip(t, c.Running())
	broken := time.Now()
	heal, down := f.begin(t, c, victim)
	<-time.After(longOrShort(3*time.Second, time.Minute))
	healed := time.Now()
	heal()
	took := awaitWhole(t, c.Lab, promptly, "end of the fault")
	if took > aliveWithin {
		faults = append(faults, fmt.Sprintf("recovered %v after the end of the fault, want at most %v", took,
			aliveWithin))
	}
	<-time.After(longOrShort(300*time.Millisecond, 5*time.Second))
	for m, at := range watch.stop() {
		if down == nil || m.member != down.WANName() {
			faults = append(faults, fmt.Sprintf("%s saw %s %s, %v after the fault, want it alive", m.by, m.member,
				m.status, at))
		} else {
			t.Logf("%s saw %s %s, %v after the fault", m.by, m.member, m.status, at)
		}
	}
	c.logSuspicions(t, broken)
	for _, a := range requesters {
		a.stop()
		if a != requesters[1] || down != c.far.Servers[0] { // otherwise the sender itself was suspended
			faults = append(faults, a.judge(t, start, broken, healed, healed.Add(took))...)
		}
	}
	t.Logf("largest extra delay of the emulator: %v", worstLate(c.Lab))
	return faults
}

// logSuspicions logs which servers refuted a suspicion since a time.
func (c chaosLab) logSuspicions(t *testing.T, since time.Time) {
	t.Helper()
	for _, s := range c.Running() {
		for _, line := range s.Process.Tail(200) {
			var at time.Time
			if err := at.UnmarshalText([]byte(logTime(line))); err != nil || at.Before(since) ||
				!strings.Contains(line, "Refuting a suspect message") {
				continue
			}
			t.Logf("%s was suspected %v after the fault: %s", s.WANName(), ms(at.Sub(since)), line)
		}
	}
}

// logTime returns the time of a log line as text.
func logTime(line string) string {
	_, rest, _ := strings.Cut(line, "time=")
	at, _, _ := strings.Cut(rest, " ")
	return at
}

// judge logs the effect of a fault on the requests and returns the violations.
// Requests sent after the recovery must succeed. In the long form the p99
// during the fault is bounded as well; the short form has too few requests for
// a p99.
func (a *requester) judge(t *testing.T, start, broken, healed, whole time.Time) (faults []string) {
	t.Helper()
	before := a.figures(completedBefore(broken), start, time.Hour)
	limit := before.p99 + maxRise
	during := a.figures(overlapping(broken, healed), broken, limit)
	t.Logf("%s before: %v", a.name, before)
	t.Logf("%s during %v: %v", a.name, ms(healed.Sub(broken)), during)
	t.Logf("%s after: %v", a.name, a.figures(overlapping(healed, time.Now()), healed, limit))
	if long() && during.p99 > limit {
		faults = append(faults, fmt.Sprintf("%s: p99 rose from %v to %v, by more than %v", a.name, ms(before.p99),
			ms(during.p99), maxRise))
	}
	if f := a.figures(func(r response) bool { return r.at.After(whole) }, whole, limit); f.failed > 0 || f.n == 0 {
		faults = append(faults, fmt.Sprintf("%s, after the recovery: %v; want no failure", a.name, f))
	}
	return faults
}
