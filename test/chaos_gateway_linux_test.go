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

// fault breaks something on the way between two datacenters that have another
// way. victim is the gateway of dc1 over which its questions go. What it
// returns mends it.
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
	{"far server suspended", suspendAnswerer},
}

// moreFaults are for the long form alone.
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

// suspendAnswerer suspends the server of dc2 that answers dc1's questions.
func suspendAnswerer(t *testing.T, c chaosLab, _ *lab.Node) (func(), *lab.Node) {
	t.Helper()
	var st api.Status
	ctx, cancel := context.WithTimeout(t.Context(), askLimit)
	defer cancel()
	if err := c.near.Servers[0].Get(ctx, api.StatusPath+"?dc="+c.far.Name, &st); err != nil {
		t.Fatal(err)
	}
	for _, s := range c.far.Servers {
		if s.Name == st.Node {
			t.Logf("%s answers; the leader is %s", s.WANName(), st.Leader)
			s.Suspend()
			return s.Resume, s
		}
	}
	t.Fatalf("%s has no server %q", c.far.Name, st.Node)
	return nil, nil
}

// TestChaosGateway breaks one of two ways between datacenters. Whatever fails
// silently, questions must find the other way, no server may call another one
// failed that is not, and all must be as before when it is mended.
func TestChaosGateway(t *testing.T) {
	alongside(t)
	var shared chaosLab
	all := faults
	if long() {
		all = append(slices.Clone(faults), moreFaults...)
	} else { // one lab for all: each fault hits the way that the last one left
		shared = newChaosLab(t)
	}
	for _, f := range all {
		t.Run(f.name, func(t *testing.T) {
			if long() {
				undisturbed(t, func(t *testing.T) []string { return newChaosLab(t).endure(t, f) })
				return
			}
			for _, fault := range shared.endure(t, f) {
				t.Error(fault)
			}
		})
	}
}

// endure returns what was not as it must be.
func (c chaosLab) endure(t *testing.T, f fault) (faults []string) {
	asks := []*asker{askAcross(t, c.near.Servers[0], c.far.Name), askAcross(t, c.far.Servers[0], c.near.Name)}
	start := time.Now()
	victim, in := carriers(t, c.Lab, c.near, c.far)
	t.Logf("the victim is %s; dc2's questions come in by it: %v", victim.Name, in == victim)
	<-time.After(byForm(0, 9*time.Second))

	watch := watchGossip(t, c.Running())
	broken := time.Now()
	heal, down := f.begin(t, c, victim)
	<-time.After(byForm(3*time.Second, time.Minute))
	healed := time.Now()
	heal()
	took := awaitWhole(t, c.Lab, promptly, "mended")
	if took > backAlive {
		faults = append(faults, fmt.Sprintf("whole %v after the fault was mended, want %v", took, backAlive))
	}
	<-time.After(byForm(300*time.Millisecond, 5*time.Second))
	for m, at := range watch.stop() {
		if down == nil || m.member != down.WANName() {
			faults = append(faults, fmt.Sprintf("%s called %s %s, %v after the fault: its way was not broken", m.by, m.member, m.status, at))
		} else {
			t.Logf("%s called %s %s, %v after the fault", m.by, m.member, m.status, at)
		}
	}
	c.logSuspicions(t, broken)
	for _, a := range asks {
		a.stop()
		if a != asks[1] || down != c.far.Servers[0] { // else the one that asked was suspended itself
			faults = append(faults, a.judge(t, start, broken, healed, healed.Add(took))...)
		}
	}
	t.Logf("the emulator was late by %v at worst", worstLate(c.Lab))
	return faults
}

// logSuspicions logs who had to say that it is alive, because others suspected
// it.
func (c chaosLab) logSuspicions(t *testing.T, since time.Time) {
	t.Helper()
	for _, s := range c.Running() {
		for _, line := range s.Process.Tail(200) {
			var at time.Time
			if err := at.UnmarshalText([]byte(logTime(line))); err != nil || at.Before(since) || !strings.Contains(line, "Refuting a suspect message") {
				continue
			}
			t.Logf("%s was suspected %v after the fault: %s", s.WANName(), ms(at.Sub(since)), line)
		}
	}
}

// logTime is the time of a log line.
func logTime(line string) string {
	_, rest, _ := strings.Cut(line, "time=")
	at, _, _ := strings.Cut(rest, " ")
	return at
}

// judge logs what a fault did to the questions, and returns what must not be.
// It demands that those asked when all was whole again are answered, and in the
// long form that few took long during the fault: figures of the short form are
// of too few questions, and of a busy machine.
func (a *asker) judge(t *testing.T, start, broken, healed, whole time.Time) (faults []string) {
	t.Helper()
	before := a.figures(answeredBefore(broken), start, time.Hour)
	limit := before.p99 + maxRise
	during := a.figures(duringTime(broken, healed), broken, limit)
	t.Logf("%s before: %v", a.name, before)
	t.Logf("%s during %v: %v", a.name, ms(healed.Sub(broken)), during)
	t.Logf("%s after: %v", a.name, a.figures(duringTime(healed, time.Now()), healed, limit))
	if long() && during.p99 > limit {
		faults = append(faults, fmt.Sprintf("%s: p99 rose from %v to %v, by more than %v", a.name, ms(before.p99), ms(during.p99), maxRise))
	}
	if f := a.figures(func(r answer) bool { return r.at.After(whole) }, whole, limit); f.failed > 0 || f.n == 0 {
		faults = append(faults, fmt.Sprintf("%s, when all was whole again: %v", a.name, f))
	}
	return faults
}
