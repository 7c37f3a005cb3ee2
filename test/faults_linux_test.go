// SPDX-License-Identifier: MPL-2.0

package test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/wanfed/wanfed/api"
	"github.com/wanfed/wanfed/diagnose"
	"github.com/wanfed/wanfed/internal/subprocess"
	"github.com/wanfed/wanfed/internal/testutil"
	"github.com/wanfed/wanfed/test/lab"
	"github.com/wanfed/wanfed/tlsutil"
)

const (
	// faultVisible bounds the time from a fault to the right status.
	faultVisible = 10 * time.Second
	// healVisible bounds the time from the end of a fault to the right status.
	healVisible = 5 * time.Second
)

// view is what the status of a datacenter must contain about a datacenter. The
// texts are parts of the cause and of the remedy.
type view struct {
	at            *lab.Datacenter
	about         string
	state         api.Health
	cause, advice string
}

func (v view) check(ctx context.Context) error {
	var st api.Status
	if err := lab.One(v.at).Get(ctx, api.StatusPath, &st); err != nil {
		return err
	}
	return checkView(st, v.about, v.state, v.cause, v.advice)
}

// checkView returns an error unless st has this state of a datacenter, with
// these parts of the cause and of the remedy.
func checkView(st api.Status, dc string, state api.Health, cause, advice string) error {
	i := slices.IndexFunc(st.Datacenters, func(d api.DatacenterStatus) bool { return d.Name == dc })
	if i < 0 {
		return fmt.Errorf("%s does not list %s", st.Datacenter, dc)
	}
	d := st.Datacenters[i]
	if d.State != state || !strings.Contains(d.Cause, cause) || !strings.Contains(d.Advice, advice) {
		return fmt.Errorf("%s about %s: %q, cause %q, remedy %q, want %q, %q, %q; headline %q",
			st.Datacenter, dc, d.State, d.Cause, d.Advice, state, cause, advice, st.Headline)
	}
	return nil
}

// allOK returns nil if each datacenter lists all of them as ok.
func allOK(ctx context.Context, dcs ...*lab.Datacenter) error {
	for _, dc := range dcs {
		for _, other := range dcs {
			if err := (view{dc, other.Name, api.HealthOK, "", ""}).check(ctx); err != nil {
				return err
			}
		}
	}
	return nil
}

// gatewaysOf returns nil if each of dcs lists n healthy gateways of datacenter
// name.
func gatewaysOf(ctx context.Context, dcs []*lab.Datacenter, name string, n int) error {
	for _, dc := range dcs {
		var st api.Status
		if err := lab.One(dc).Get(ctx, api.StatusPath, &st); err != nil {
			return err
		}
		for _, d := range st.Datacenters {
			if d.Name == name && d.GatewaysHealthy != n {
				return fmt.Errorf("%s lists %d healthy gateways of %s, want %d", dc.Name, d.GatewaysHealthy, name, n)
			}
		}
	}
	return nil
}

// startLab starts n datacenters with one server and one gateway each, and waits
// until the status of all is ok.
func startLab(t *testing.T, n int) (*lab.Lab, []*lab.Datacenter) {
	t.Helper()
	lab.NeedNFT(t)
	l := lab.New(t)
	for range n {
		l.Add(1, 1).Start()
	}
	took := testutil.Await(t, waitLimit, "federation", func(ctx context.Context) error {
		return allOK(ctx,
			l.Datacenters()...)
	})
	t.Logf("all ok after %v", took.Round(time.Millisecond))
	return l, l.Datacenters()
}

// statusFault is one row of the fault matrix: a fault, what the status of the
// datacenters must have, and what wanfed diagnose must find first.
type statusFault struct {
	name         string
	inject, heal func()
	views        []view
	findings     []firstFinding
	// healed are the datacenters that see each other as ok afterwards.
	healed []*lab.Datacenter
}

// run injects the fault, calls visible when the status of every datacenter is
// right, and heals the fault. The status must be right in time, both times.
func (f statusFault) run(t *testing.T, visible func()) {
	t.Helper()
	f.inject()
	took := testutil.Await(t, faultVisible, "status with the fault: "+f.name, func(ctx context.Context) error {
		for _, v := range f.views {
			if err := v.check(ctx); err != nil {
				return err
			}
		}
		return nil
	})
	visible()
	f.heal()
	healed := testutil.Await(t, healVisible, "status without the fault: "+f.name, func(ctx context.Context) error {
		return allOK(ctx, f.healed...)
	})
	t.Logf("%s: seen after %v, healed after %v", f.name, took.Round(time.Millisecond), healed.Round(time.Millisecond))
}

// status runs the fault and checks the status alone. WANFED_FAULT_TIME is the
// time for which a visible fault continues: retries are then rare.
func (f statusFault) status(t *testing.T) {
	t.Helper()
	f.run(t, func() { time.Sleep(envDuration(t, "WANFED_FAULT_TIME", 0)) })
}

// diagnose runs the fault and checks the first line of wanfed diagnose.
func (f statusFault) diagnose(t *testing.T) {
	t.Helper()
	if len(f.findings) == 0 {
		t.Fatalf("%s has no findings", f.name)
	}
	f.run(t, func() {
		for _, w := range f.findings {
			w.check(t, f.name)
		}
	})
}

// gatewayFaults calls run with faults of gateways, ports and servers of dc3.
func gatewayFaults(t *testing.T, run func(statusFault, *testing.T)) {
	_, dcs := startLab(t, 3)
	dc1, dc2, dc3 := dcs[0], dcs[1], dcs[2]
	srv1, srv, gw := lab.One(dc1), lab.One(dc3), dc3.Gateways[0]
	wan1, wan2, wan3 := dc1.Gateways[0].WANAddr(), dc2.Gateways[0].WANAddr(), gw.WANAddr()
	const listens = "check that a gateway of dc3 listens there"
	unreachable := []view{
		{dc1, "dc3", api.HealthUnreachable, "dc3 does not respond at " + wan3, listens},
		{dc2, "dc3", api.HealthUnreachable, "dc3 does not respond at " + wan3, listens},
	}
	silent := firstFinding{srv1, diagnose.Fail, "dc3 does not respond at " + wan3, listens}
	closed := func(chain, match string) func() {
		return func() {
			gw.NFT(fmt.Sprintf("table inet closed { chain c { type filter hook %s priority 0; %s tcp dport %d drop; }\n}",
				chain, match, lab.WANPort))
		}
	}
	open := func() { gw.NFT("delete table inet closed") }
	for _, f := range []statusFault{{
		name: "gateway stopped", inject: gw.Stop, heal: func() { gw.StartGateway() },
		views: append([]view{
			{dc3, "dc3", api.HealthDegraded, "dc3 has no gateway", "start a gateway here"},
			{dc3, "dc1", api.HealthUnreachable, "", ""},
		}, unreachable...),
		findings: []firstFinding{silent, {srv, diagnose.Fail, "dc3 has no gateway", "start a gateway here"}},
	}, {
		name: "gateway frozen", inject: gw.Suspend, heal: gw.Resume,
		views: append([]view{
			{dc3, "dc3", api.HealthDegraded, "no gateway of dc3 is healthy", ""},
			{dc3, "dc1", api.HealthUnreachable, "dc1 does not respond", ""},
		}, unreachable...),
		findings: []firstFinding{silent,
			{srv, diagnose.Fail, "no gateway of dc3 is healthy: gw1", "start a gateway, or read its log"}},
	}, {
		name: "inbound port closed", inject: closed("input", "iifname wan"), heal: open,
		views: append([]view{
			{dc3, "dc3", api.HealthOneWay, "dc1 and dc2 cannot connect to gw1 at " + wan3, "open this port"},
			{dc3, "dc1", api.HealthOneWay, "dc1 cannot connect to gw1", "open this port"},
		}, unreachable...),
		findings: []firstFinding{silent,
			{srv, diagnose.Fail, "dc1 and dc2 cannot connect to gw1 at " + wan3, "open this port"}},
	}, {
		name: "outbound port closed", inject: closed("output", "oifname wan"), heal: open,
		views: []view{
			{dc3, "dc1", api.HealthUnreachable, "dc1 does not respond at " + wan1, "no firewall is between"},
			{dc3, "dc2", api.HealthUnreachable, "dc2 does not respond at " + wan2, "no firewall is between"},
			{dc1, "dc3", api.HealthOneWay, "dc3 cannot connect to gw1 at " + wan1, "open this port"},
			{dc2, "dc3", api.HealthOneWay, "dc3 cannot connect to gw1 at " + wan2, "open this port"},
		},
		findings: []firstFinding{
			{srv1, diagnose.Fail, "dc3 cannot connect to gw1 at " + wan1, "open this port"},
			{srv, diagnose.Fail, "dc1 does not respond at " + wan1, "no firewall is between"},
		},
	}, {
		name: "server frozen", inject: srv.Suspend, heal: srv.Resume, views: unreachable,
		findings: []firstFinding{silent, {srv, diagnose.Fail, "accepts connections and does not respond", "stuck"}},
	}} {
		f.healed = dcs
		run(f, t)
	}

	// One of two gateways of dc3 works, so that dc3 stays reachable.
	gw2 := dc3.AddGateway()
	gw2.StartGateway()
	testutil.Await(t, waitLimit, "dc3 with two gateways", func(ctx context.Context) error {
		return errors.Join(allOK(ctx, dcs...), gatewaysOf(ctx, dcs, "dc3", 2))
	})
	time.Sleep(3 * time.Second) // until the first probes have worked: the next ones are minutes away
	degraded := func(f statusFault, cause, remedy string) {
		f.healed = dcs
		for _, at := range dcs {
			f.views = append(f.views, view{at, "dc3", api.HealthDegraded, cause, remedy})
		}
		f.findings = []firstFinding{{srv1, diagnose.Warn, cause, remedy}, {srv, diagnose.Warn, cause, remedy}}
		run(f, t)
	}
	degraded(statusFault{
		name: "inbound port of one of two gateways closed", inject: closed("input", "iifname wan"), heal: open,
	}, "dc1 and dc2 cannot connect to gw1 at "+wan3+": timeout", "open this port")
	gw2.Stop()
	right := gw2.WAN
	degraded(statusFault{
		name: "one of two gateways has a private WAN address",
		inject: func() {
			gw2.WAN = "10.77.0.5"
			gw2.StartGateway("--wan-bind", right+":8443")
		},
		heal: func() {
			gw2.Stop()
			gw2.WAN = right
			gw2.StartGateway()
		},
	}, "dc1 and dc2 cannot connect to gw2 at 10.77.0.5:8443: no route; is it the private address of a NAT?",
		"set wan of the gateway")
}

// settingsFaults calls run with wrong settings and certificates of dc3.
func settingsFaults(t *testing.T, run func(statusFault, *testing.T)) {
	l, dcs := startLab(t, 2)
	dc1, dc2, dc3 := dcs[0], dcs[1], l.Add(1, 1)
	srv1, srv, gw := lab.One(dc1), lab.One(dc3), dc3.Gateways[0]
	right, private := gw.WAN, "10.77.0.5:8443"

	// No other datacenter has seen the right address of the gateway.
	srv.StartServer("--primary-datacenter", "dc9")
	gw.WAN = "10.77.0.5"
	gw.StartGateway("--wan-bind", right+":8443")
	run(statusFault{
		name: "wrong primary", inject: func() {}, heal: func() {}, healed: dcs,
		views: []view{
			{dc3, "dc9", api.HealthUnreachable, "does not know the datacenter dc9", "check primary_datacenter"},
			{dc1, "dc2", api.HealthOK, "", ""},
		},
		findings: []firstFinding{{srv, diagnose.Fail, "does not know the datacenter dc9", "check primary_datacenter"}},
	}, t)
	dcs = l.Datacenters()
	run(statusFault{
		name: "private WAN address", inject: func() { srv.Stop(); srv.StartServer() }, healed: dcs,
		heal: func() {
			gw.Stop()
			gw.WAN = right
			gw.StartGateway()
		},
		views: []view{
			{dc3, "dc3", api.HealthOneWay, "cannot connect to gw1 at " + private, "set wan of the gateway"},
			{dc1, "dc3", api.HealthUnreachable, private, "is a private address"},
			{dc2, "dc3", api.HealthUnreachable, private, "is a private address"},
		},
		findings: []firstFinding{
			{srv1, diagnose.Fail, private, "is a private address"},
			{srv, diagnose.Fail, "cannot connect to gw1 at " + private, "set wan of the gateway"},
		},
	}, t)

	other, err := subprocess.NewPKI(filepath.Join(t.TempDir(), "pki"), "")
	if err != nil {
		t.Fatal(err)
	}
	files, err := other.Issue(tlsutil.RoleServer, "dc3", "srv1")
	if err != nil {
		t.Fatal(err)
	}
	genuine := srv.TLS
	certificate := func(name string, files tlsutil.Files) {
		restart := func(files tlsutil.Files) { srv.Stop(); srv.TLS = files; srv.StartServer() }
		const there, here = "the certificates of dc1 and dc3 are signed by different CAs",
			"the certificates of dc3 and dc1 are signed by different CAs"
		run(statusFault{
			name: name, inject: func() { restart(files) }, heal: func() { restart(genuine) }, healed: dcs,
			views: []view{
				{dc3, "dc1", api.HealthUnreachable, here, "one CA"}, {dc1, "dc3", api.HealthUnreachable, there, "one CA"},
			},
			findings: []firstFinding{
				{srv1, diagnose.Fail, there, "one CA"}, {srv, diagnose.Fail, here, "one CA"},
			},
		}, t)
	}
	certificate("other CA", files)

	// dc3 trusts the certificates of the others, which reject its certificate.
	var bundle []byte
	for _, file := range []string{genuine.CA, files.CA} {
		b, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		bundle = append(bundle, b...)
	}
	files.CA = filepath.Join(t.TempDir(), "bundle.pem")
	if err := os.WriteFile(files.CA, bundle, 0o600); err != nil {
		t.Fatal(err)
	}
	certificate("rejected certificate", files)
}
