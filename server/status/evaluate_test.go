// SPDX-License-Identifier: MPL-2.0

package status

import (
	"strings"
	"testing"
	"time"

	"github.com/wanfed/wanfed/api"
	"github.com/wanfed/wanfed/federation"
	"github.com/wanfed/wanfed/wanfed"
)

const (
	ownAddr = "10.0.0.5:8444"
	dc3Addr = "198.51.100.3:8443"
)

func viaOwn(health wanfed.PathHealth, class wanfed.FailureClass) api.PathStatus {
	return api.PathStatus{Address: ownAddr, Via: federation.ViaLocalGateway, Health: string(health),
		Failure: string(class)}
}

func direct(addr string, class wanfed.FailureClass) api.PathStatus {
	return api.PathStatus{Address: addr, Via: federation.ViaRemoteGateway, Health: string(wanfed.PathFailing),
		Failure: string(class)}
}

// remoteFacts returns the facts of dc3, as a server of dc1 sees them.
func remoteFacts(change func(*facts)) facts {
	f := facts{local: "dc1", hasState: true, DatacenterStatus: api.DatacenterStatus{
		Name: "dc3", ServersAlive: 1, ServersKnown: 1, GatewaysHealthy: 1, GatewaysKnown: 1,
		Paths: []api.PathStatus{viaOwn(wanfed.PathOK, ""), direct(dc3Addr, wanfed.FailureNoRoute)},
	}}
	change(&f)
	return f
}

// localFacts returns the facts of dc3, as a server of dc3 sees them.
func localFacts(change func(*facts)) facts {
	f := facts{local: "dc3", hasState: true, DatacenterStatus: api.DatacenterStatus{
		Name: "dc3", Own: true, ServersAlive: 1, ServersKnown: 1, GatewaysHealthy: 1, GatewaysKnown: 1,
	}, raft: api.ComponentStatus{State: "ok"}, gateways: []gatewayFact{{node: "gw1", wan: dc3Addr, healthy: true}}}
	change(&f)
	return f
}

func failingAt(dc, addr string, class wanfed.FailureClass) pathReport {
	return pathReport{dc, api.DirectionFailing, []addressFailure{{addr, class}}}
}

func setPaths(paths ...api.PathStatus) func(*facts) { return func(f *facts) { f.Paths = paths } }

// partial adds a gateway of dc3 to which other datacenters cannot connect.
func partial(f *facts) {
	const private = "10.0.0.5:8443"
	gateways := []gatewayFact{{node: "gw1", wan: dc3Addr, healthy: true}, {node: "gw2", wan: private, healthy: true},
		{node: "gw3", wan: "10.0.0.6:8443"}}
	f.UnreachableGateways = unreachableGateways("dc3", gateways, []federation.UnreachableGateway{
		{From: "dc1", DC: "dc3", Addr: private, Class: wanfed.FailureTimeout},
		{From: "dc1", DC: "dc3", Addr: private, Class: wanfed.FailureTimeout}, // another server
		{From: "dc2", DC: "dc3", Addr: private, Class: wanfed.FailureRefused},
		{From: "dc2", DC: "dc3", Addr: "10.0.0.6:8443", Class: wanfed.FailureRefused}, // gw3 is critical
		{From: "dc2", DC: "dc3", Addr: "10.0.0.9:8443", Class: wanfed.FailureRefused}, // a former address
		{From: "dc2", DC: "dc1", Addr: private, Class: wanfed.FailureRefused},
	})
}

func TestEvaluate(t *testing.T) {
	failing := wanfed.PathFailing
	for _, tt := range []struct {
		name          string
		facts         facts
		state         api.Health
		cause, advice string // parts
	}{
		{"remote, all works", remoteFacts(func(*facts) {}), api.HealthOK, "", ""},
		{"remote gateway stopped", remoteFacts(setPaths(viaOwn(failing, wanfed.FailureUpstream), direct(dc3Addr,
			wanfed.FailureNoRoute))),
			api.HealthUnreachable, "dc3 does not respond at " + dc3Addr + ": no answer behind the gateway",
			"check that a gateway of dc3 listens there"},
		{"remote gateway frozen", remoteFacts(setPaths(viaOwn(failing, wanfed.FailureTimeout))),
			api.HealthUnreachable, "dc3 does not respond at own gateway " + ownAddr + ": timeout",
			"that its servers run"},
		{"private address", remoteFacts(setPaths(viaOwn(failing, wanfed.FailureUpstream), direct("10.0.0.9:8443",
			wanfed.FailureRefused))),
			api.HealthUnreachable, "dc3 does not respond at 10.0.0.9:8443",
			"10.0.0.9:8443 is a private address: set wan of that gateway"},
		{"local gateway stopped", remoteFacts(setPaths(viaOwn(failing, wanfed.FailureRefused), direct(dc3Addr,
			wanfed.FailureNoRoute))),
			api.HealthUnreachable, "the local gateway " + ownAddr + " does not accept connections: connection refused",
			"start the gateway"},
		{"other CA", remoteFacts(setPaths(viaOwn(failing, wanfed.FailureOtherCA), direct(dc3Addr,
			wanfed.FailureNoRoute))),
			api.HealthUnreachable, "the certificates of dc1 and dc3 are signed by different CAs",
			"certificates of one CA"},
		{"clock", remoteFacts(setPaths(viaOwn(failing, wanfed.FailureCertificate))),
			api.HealthUnreachable, "a certificate between dc1 and dc3 is not valid", "check the clocks"},
		{"wrong primary", remoteFacts(func(f *facts) {
			f.Primary, f.Paths = true, []api.PathStatus{viaOwn(failing, wanfed.FailureUpstream), direct(dc3Addr,
				wanfed.FailureUnknownName)}
		}), api.HealthUnreachable, "responds, but does not know the datacenter dc3", "check primary_datacenter"},
		{"nothing known", remoteFacts(func(f *facts) { f.Paths, f.ServersAlive = nil, 0 }),
			api.HealthUnreachable, "no gateway of dc3 is known", "wanfed federation delete dc3"},
		{"nothing tried", remoteFacts(setPaths(viaOwn(wanfed.PathUntested, ""))), api.HealthUnknown,
			"no path to dc3 has a result", ""},
		{"results too old", remoteFacts(setPaths(viaOwn(pathUnknown, ""))), api.HealthUnknown,
			"no path to dc3 has a result", ""},
		{"no healthy gateway", remoteFacts(func(f *facts) { f.GatewaysHealthy = 0 }), api.HealthDegraded,
			"0 of 1 gateways of dc3", "start a gateway there"},
		{"no gateway", remoteFacts(func(f *facts) { f.GatewaysHealthy, f.GatewaysKnown = 0, 0 }), api.HealthDegraded,
			"dc3 has no gateway", "start a gateway there"},
		{"server down", remoteFacts(func(f *facts) { f.ServersKnown = 3 }), api.HealthDegraded,
			"1 of 3 servers of dc3 are alive", "wanfed members --wan"},
		{"no member alive", remoteFacts(func(f *facts) { f.ServersAlive = 0 }), api.HealthDegraded,
			"none of its servers is alive", ""},
		{"no state", remoteFacts(func(f *facts) { f.hasState = false }), api.HealthDegraded,
			"has written no federation state", ""},
		{"conflict", remoteFacts(func(f *facts) { f.conflict = "stop it" }), api.HealthDegraded, "conflict", "stop it"},
		{"address of a local gateway", remoteFacts(func(f *facts) {
			f.unused = []federation.UnusedAddress{{Addr: ownAddr, Holder: "gateway gw1"}, {Addr: dc3Addr, Holder: "server srv1"}}
		}), api.HealthDegraded, "the address " + ownAddr + " of a gateway of dc3 is also the address of the gateway gw1 " +
			"of dc1, and is not used; 1 more", "set wan of that gateway of dc3"},
		{"only the address of a local gateway", remoteFacts(func(f *facts) {
			f.Paths, f.unused = nil, []federation.UnusedAddress{{Addr: ownAddr, Holder: "gateway gw1"}}
		}), api.HealthUnreachable, "the address " + ownAddr + " of a gateway of dc3", "set wan of that gateway of dc3"},
		{"remote cannot connect", remoteFacts(func(f *facts) {
			f.reports = []pathReport{failingAt("dc3", "198.51.100.1:8443", wanfed.FailureTimeout)}
		}), api.HealthOneWay, "dc3 cannot connect to the gateway at 198.51.100.1:8443: timeout", "open this port"},

		{"local, all works", localFacts(func(f *facts) {
			f.reports = []pathReport{{dc: "dc1",
				direction: api.DirectionOK}}
		}), api.HealthOK, "", ""},
		{"local, no gateway", localFacts(func(f *facts) { f.gateways, f.GatewaysKnown, f.GatewaysHealthy = nil, 0, 0 }),
			api.HealthDegraded, "dc3 has no gateway", "start a gateway here: wanfed gateway --dc dc3"},
		{"local gateway refused", localFacts(func(f *facts) {
			f.refused = map[string]string{"gw2": "WAN address 10.0.0.5:8444 is the LAN address of gateway gw1: set another"}
		}), api.HealthDegraded, "the gateway gw2 cannot register: WAN address 10.0.0.5:8444", "set another"},
		{"local gateway critical", localFacts(func(f *facts) { f.gateways[0].healthy = false }), api.HealthDegraded,
			"no gateway of dc3 is healthy: gw1", "read its log"},
		{"two gateways with one name", localFacts(func(f *facts) {
			f.gateways[0].conflict = "LAN address 10.0.0.2:1 and WAN address 192.0.2.2:8443"
		}), api.HealthDegraded, "two gateways of dc3 are called gw1", "and the one with LAN address 10.0.0.2:1 and WAN"},
		{"local, no leader", localFacts(func(f *facts) {
			f.raft = api.ComponentStatus{State: "no leader",
				Detail: "1 of 3 voters alive"}
		}),
			api.HealthDegraded, "the Raft group is not ok: no leader", "1 of 3 voters alive"},
		{"none connects, private address", localFacts(func(f *facts) {
			f.gateways[0].wan = "10.0.0.5:8443"
			f.reports = []pathReport{failingAt("dc1", "10.0.0.5:8443", wanfed.FailureTimeout), failingAt("dc2",
				"10.0.0.5:8443", wanfed.FailureTimeout)}
		}), api.HealthOneWay,
			"dc1 and dc2 cannot connect to gw1 at 10.0.0.5:8443: timeout; is it the private address of a NAT?",
			"set wan of the gateway"},
		{"none connects, for different reasons", localFacts(func(f *facts) {
			f.reports = []pathReport{failingAt("dc1", dc3Addr, wanfed.FailureUpstream),
				failingAt("dc2", dc3Addr, wanfed.FailureTimeout)}
		}), api.HealthOneWay, "dc1 and dc2 cannot connect to gw1 at " + dc3Addr + ": no answer behind the gateway, timeout",
			"open this port"},
		{"one cannot connect", localFacts(func(f *facts) {
			f.reports = []pathReport{failingAt("dc1", dc3Addr, wanfed.FailureRefused), {dc: "dc2",
				direction: api.DirectionOK}}
		}), api.HealthDegraded, "dc1 cannot connect to gw1 at " + dc3Addr + ": connection refused", "open this port"},
		{"others cannot connect to one of two gateways", localFacts(partial), api.HealthDegraded,
			"dc1 and dc2 cannot connect to gw2 at 10.0.0.5:8443: timeout; is it the private address of a NAT?",
			"set wan of the gateway"},
		{"remote, some cannot connect to one of two gateways", remoteFacts(partial), api.HealthDegraded,
			"dc1 and dc2 cannot connect to gw2 at 10.0.0.5:8443: timeout; is it the private address of a NAT?",
			"set wan of the gateway"},
		{"remote gateway stopped, and one was unreachable", remoteFacts(func(f *facts) {
			partial(f)
			setPaths(viaOwn(failing, wanfed.FailureUpstream))(f)
		}), api.HealthUnreachable, "dc3 does not respond", ""},
		{"none connects, no address", localFacts(func(f *facts) {
			f.reports = []pathReport{{dc: "dc1",
				direction: api.DirectionFailing}}
		}),
			api.HealthOneWay, "dc1 cannot connect to dc3", "WAN port"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			d := evaluate(tt.facts)
			if d.State != tt.state || !strings.Contains(d.Cause, tt.cause) || !strings.Contains(d.Advice, tt.advice) {
				t.Errorf("evaluate() = %q, %q, %q, want %q, %q, %q", d.State, d.Cause, d.Advice, tt.state, tt.cause,
					tt.advice)
			}
			if (d.Cause == "") != (d.State == api.HealthOK) || (d.Advice == "") != (d.State == api.HealthOK) {
				t.Errorf("evaluate() = %q, %q, %q, want a cause and a remedy unless the state is ok", d.State,
					d.Cause, d.Advice)
			}
		})
	}
}

// TestEvaluate_NeverOK checks that a datacenter without a healthy gateway, and one
// to which no path has a recent result, is never ok, whatever else is known.
func TestEvaluate_NeverOK(t *testing.T) {
	working := pathReport{dc: "dc1", direction: api.DirectionOK}
	changes := []func(*facts){
		func(f *facts) { f.hasState = !f.hasState },
		func(f *facts) { f.Primary = true },
		func(f *facts) { f.ServersAlive, f.ServersKnown = 3, 3 },
		func(f *facts) { f.reports = append(f.reports, working) },
		func(f *facts) { f.reports = append(f.reports, failingAt("dc2", dc3Addr, wanfed.FailureTimeout)) },
		partial,
	}
	old := viaOwn(pathUnknown, "")
	for _, tt := range []struct {
		name  string
		facts facts
	}{
		{"local, none", localFacts(func(f *facts) { f.gateways, f.GatewaysHealthy, f.GatewaysKnown = nil, 0, 0 })},
		{"local, critical", localFacts(func(f *facts) { f.gateways = []gatewayFact{{node: "gw1"}, {node: "gw2"}} })},
		{"remote, none", remoteFacts(func(f *facts) { f.GatewaysHealthy, f.GatewaysKnown = 0, 0 })},
		{"remote, critical", remoteFacts(func(f *facts) { f.GatewaysHealthy = 0 })},
		{"remote, old results", remoteFacts(setPaths(old, old))},
		{"remote, no result", remoteFacts(setPaths(viaOwn(wanfed.PathUntested, "")))},
		{"remote, no path", remoteFacts(setPaths())},
	} {
		for set := range 1 << len(changes) {
			f := tt.facts
			f.reports = nil
			for i, change := range changes {
				if set&(1<<i) != 0 {
					change(&f)
				}
			}
			if d := evaluate(f); d.State == api.HealthOK || d.Cause == "" || d.Advice == "" {
				t.Errorf("%s, changes %b: evaluate() = %q, %q, %q, want another state with a cause and a remedy",
					tt.name, set, d.State, d.Cause, d.Advice)
			}
		}
	}
}

func TestHeadline(t *testing.T) {
	dc := func(name string, state api.Health, cause string) api.DatacenterStatus {
		return api.DatacenterStatus{Name: name, Own: name == "dc1", State: state, Cause: cause, GatewaysHealthy: 1}
	}
	noGateway := dc("dc1", api.HealthDegraded, "dc1 has no gateway")
	noGateway.GatewaysHealthy = 0
	for _, tt := range []struct {
		dcs  []api.DatacenterStatus
		want string
	}{
		{[]api.DatacenterStatus{dc("dc1", api.HealthOK, "")}, "dc1 is ok; no other datacenter is known"},
		{[]api.DatacenterStatus{dc("dc1", api.HealthOK, ""), dc("dc2", api.HealthOK, "")}, "all 2 datacenters are ok"},
		{[]api.DatacenterStatus{dc("dc1", api.HealthOK, ""), dc("dc2", api.HealthDegraded, "a"), dc("dc3",
			api.HealthUnreachable, "b")},
			"dc3 is unreachable, and 1 more are not ok: b"},
		{[]api.DatacenterStatus{dc("dc1", api.HealthOK, ""), dc("dc2", api.HealthUnreachable, "a"), dc("dc3",
			api.HealthUnreachable, "b")},
			"no other datacenter is reachable: a"},
		{[]api.DatacenterStatus{noGateway, dc("dc2", api.HealthUnreachable, "a")},
			"dc1 is degraded: dc1 has no gateway"},
		{[]api.DatacenterStatus{dc("dc1", api.HealthOneWay, "x"), dc("dc2", api.HealthOneWay, "a")},
			"dc1 is one way: x"},
	} {
		if got := headline(tt.dcs); got != tt.want {
			t.Errorf("headline() = %q, want %q", got, tt.want)
		}
	}
}

// TestCurrent checks that a path without an echo fails, and that an old result is
// not reported.
func TestCurrent(t *testing.T) {
	now := time.Unix(10_000, 0)
	path := func(last time.Duration) wanfed.PathStatus {
		return wanfed.PathStatus{Addr: ownAddr, Health: wanfed.PathOK, LastSuccess: now.Add(-last),
			ProbeInterval: 25 * time.Second}
	}
	failed := func(last time.Duration) wanfed.PathStatus {
		p := path(last)
		p.Health, p.LastErrorAt = wanfed.PathFailing, now
		return p
	}
	failedAt := func(last time.Duration) wanfed.PathStatus {
		p := failed(time.Hour)
		p.LastErrorAt = now.Add(-last)
		return p
	}
	slow := func(last time.Duration) wanfed.PathStatus {
		p := path(last)
		p.Health = wanfed.PathSlow
		return p
	}
	connected := func(since time.Time) wanfed.LinkStatus {
		return wanfed.LinkStatus{Path: wanfed.Path{Addr: ownAddr}, ConnectedSince: since}
	}
	link := func(addr string, unanswered time.Duration) wanfed.LinkStatus {
		return wanfed.LinkStatus{Path: wanfed.Path{Addr: addr}, UnansweredSince: now.Add(-unanswered)}
	}
	for _, tt := range []struct {
		name string
		path wanfed.PathStatus
		link wanfed.LinkStatus
		want wanfed.PathHealth
	}{
		{"fresh", path(time.Second), wanfed.LinkStatus{}, wanfed.PathOK},
		{"three intervals old", path(75 * time.Second), wanfed.LinkStatus{}, wanfed.PathOK},
		{"old", path(76 * time.Second), wanfed.LinkStatus{}, pathUnknown},
		{"slow", slow(75 * time.Second), wanfed.LinkStatus{}, wanfed.PathSlow},
		{"slow, old", slow(76 * time.Second), wanfed.LinkStatus{}, pathUnknown},
		{"failure three intervals old", failedAt(75 * time.Second), wanfed.LinkStatus{}, wanfed.PathFailing},
		{"old failure", failedAt(76 * time.Second), wanfed.LinkStatus{}, pathUnknown},
		{"never used", wanfed.PathStatus{Addr: ownAddr, Health: wanfed.PathUntested}, wanfed.LinkStatus{},
			wanfed.PathUntested},
		{"echo pending", path(3 * time.Second), link(ownAddr, 2*time.Second), wanfed.PathOK},
		{"echo late", path(7 * time.Second), link(ownAddr, 4*time.Second), wanfed.PathFailing},
		{"echo late, probe worked", path(time.Second), link(ownAddr, 4*time.Second), wanfed.PathOK},
		{"echo late on another path", path(7 * time.Second), link("192.0.2.1:1", 4*time.Second), wanfed.PathOK},
		{"call late, echoes arrive", failed(time.Second), connected(now.Add(-time.Minute)), wanfed.PathOK},
		{"call late, echoes are old", failed(8 * time.Second), connected(now.Add(-time.Minute)), wanfed.PathFailing},
		{"connection lost", failed(time.Second), connected(time.Time{}), wanfed.PathFailing},
	} {
		t.Run(tt.name, func(t *testing.T) {
			if got := current(tt.path, tt.link, now).Health; got != tt.want {
				t.Errorf("current() = %s, want %s", got, tt.want)
			}
		})
	}
}
