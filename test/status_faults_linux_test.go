// SPDX-License-Identifier: MPL-2.0

package test

import (
	"context"
	"crypto/tls"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/wanfed/wanfed/api"
	"github.com/wanfed/wanfed/internal/backoff"
	"github.com/wanfed/wanfed/internal/subprocess"
	"github.com/wanfed/wanfed/internal/testutil"
	"github.com/wanfed/wanfed/test/lab"
	"github.com/wanfed/wanfed/test/lab/wan"
	"github.com/wanfed/wanfed/tlsutil"
	"github.com/wanfed/wanfed/wanfed"
)

const (
	// faultVisible bounds the time from a fault to the right status.
	faultVisible = 10 * time.Second
	// healVisible bounds the time from the end of a fault to the right status.
	healVisible = 5 * time.Second
)

// envDuration returns the duration in an environment variable, or a default.
func envDuration(t *testing.T, name string, otherwise time.Duration) time.Duration {
	t.Helper()
	text := os.Getenv(name)
	if text == "" {
		return otherwise
	}
	d, err := time.ParseDuration(text)
	if err != nil {
		t.Fatalf("%s: %v", name, err)
	}
	return d
}

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

// statusFault is one row of the fault matrix.
type statusFault struct {
	name         string
	inject, heal func()
	views        []view
}

// run injects the fault and heals it. The status of every datacenter must be
// right in time, both times. WANFED_FAULT_TIME is the time for which a visible
// fault continues: retries are then rare.
func (f statusFault) run(t *testing.T, dcs ...*lab.Datacenter) {
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
	time.Sleep(envDuration(t, "WANFED_FAULT_TIME", 0))
	f.heal()
	healed := testutil.Await(t, healVisible, "status without the fault: "+f.name, func(ctx context.Context) error {
		return allOK(ctx, dcs...)
	})
	t.Logf("%s: seen after %v, healed after %v", f.name, took.Round(time.Millisecond), healed.Round(time.Millisecond))
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

// TestStatusFaults makes faults of gateways, ports and servers of dc3. The
// status of every datacenter names the state, the cause and the remedy.
func TestStatusFaults(t *testing.T) {
	_, dcs := startLab(t, 3)
	dc1, dc2, dc3 := dcs[0], dcs[1], dcs[2]
	srv, gw := dc3.Servers[0], dc3.Gateways[0]
	atGateway := "dc3 does not respond at " + gw.WANAddr()
	unreachable := []view{
		{dc1, "dc3", api.HealthUnreachable, atGateway, "check that a gateway of dc3 listens there"},
		{dc2, "dc3", api.HealthUnreachable, atGateway, "check that a gateway of dc3 listens there"},
	}
	closed := func(chain, match string) func() {
		return func() {
			gw.NFT(fmt.Sprintf("table inet %s { chain c { type filter hook %s priority 0; %s tcp dport %d drop; }\n}",
				"closed", chain, match, lab.WANPort))
		}
	}
	open := func() { gw.NFT("delete table inet closed") }
	for _, f := range []statusFault{
		{"gateway stopped", gw.Stop, func() { gw.StartGateway() }, append([]view{
			{dc3, "dc3", api.HealthDegraded, "dc3 has no gateway", "start a gateway here"},
			{dc3, "dc1", api.HealthUnreachable, "", ""},
		}, unreachable...)},
		{"gateway frozen", gw.Suspend, gw.Resume, append([]view{
			{dc3, "dc1", api.HealthUnreachable, "dc1 does not respond", ""},
		}, unreachable...)},
		{"inbound port closed", closed("input", "iifname wan"), open, append([]view{
			{dc3, "dc3", api.HealthOneWay, "dc1 and dc2 cannot connect to gw1 at " + gw.WANAddr(), "open this port"},
			{dc3, "dc1", api.HealthOneWay, "dc1 cannot connect to gw1", "open this port"},
		}, unreachable...)},
		{"outbound port closed", closed("output", "oifname wan"), open, []view{
			{dc3, "dc1", api.HealthUnreachable, "dc1 does not respond at " + dc1.Gateways[0].WANAddr(),
				"no firewall is between"},
			{dc3, "dc2", api.HealthUnreachable, "dc2 does not respond at " + dc2.Gateways[0].WANAddr(),
				"no firewall is between"},
			{dc1, "dc3", api.HealthOneWay, "dc3 cannot connect to gw1 at " + dc1.Gateways[0].WANAddr(),
				"open this port"},
			{dc2, "dc3", api.HealthOneWay, "dc3 cannot connect to gw1 at " + dc2.Gateways[0].WANAddr(),
				"open this port"},
		}},
		{"server frozen", srv.Suspend, srv.Resume, unreachable},
	} {
		f.run(t, dcs...)
	}

	// One of two gateways of dc3 works, so that dc3 stays reachable.
	gw2 := dc3.AddGateway()
	gw2.StartGateway()
	testutil.Await(t, waitLimit, "dc3 with two gateways", func(ctx context.Context) error {
		return errors.Join(allOK(ctx, dcs...), gatewaysOf(ctx, dcs, "dc3", 2))
	})
	time.Sleep(3 * time.Second) // until the first probes have worked: the next ones are minutes away
	cannot := "dc1 and dc2 cannot connect to gw1 at " + gw.WANAddr() + ": timeout"
	statusFault{"inbound port of one of two gateways closed", closed("input", "iifname wan"), open, []view{
		{dc3, "dc3", api.HealthDegraded, cannot, "open this port"},
		{dc1, "dc3", api.HealthDegraded, cannot, "open this port"},
		{dc2, "dc3", api.HealthDegraded, cannot, "open this port"},
	}}.run(t, dcs...)
	gw2.Stop()
	right, private := gw2.WAN, "10.77.0.5:8443"
	const cause, remedy = "dc1 and dc2 cannot connect to gw2 at ", "set wan of the gateway"
	statusFault{"one of two gateways has a private WAN address", func() {
		gw2.WAN = "10.77.0.5"
		gw2.StartGateway("--wan-bind", right+":8443")
	}, func() {
		gw2.Stop()
		gw2.WAN = right
		gw2.StartGateway()
	}, []view{
		{dc3, "dc3", api.HealthDegraded, cause + private + ": no route; is it the private address of a NAT?", remedy},
		{dc1, "dc3", api.HealthDegraded, cause + private + ": no route; is it the private address of a NAT?", remedy},
		{dc2, "dc3", api.HealthDegraded, cause + private + ": no route; is it the private address of a NAT?", remedy},
	}}.run(t, dcs...)
}

// TestStatusFaults_Settings starts dc3 with wrong settings and certificates.
func TestStatusFaults_Settings(t *testing.T) {
	t.Parallel()
	l, dcs := startLab(t, 2)
	dc1, dc2 := dcs[0], dcs[1]
	dc3 := l.Add(1, 1)
	dcs = l.Datacenters()
	srv, gw := dc3.Servers[0], dc3.Gateways[0]
	right := gw.WAN
	private := "10.77.0.5:8443"

	// No other datacenter has seen the right address of the gateway.
	srv.StartServer("--primary-datacenter", "dc9")
	gw.WAN = "10.77.0.5"
	gw.StartGateway("--wan-bind", right+":8443")
	statusFault{"wrong primary", func() {}, func() {}, []view{
		{dc3, "dc9", api.HealthUnreachable, "does not know the datacenter dc9", "check primary_datacenter"},
		{dc1, "dc2", api.HealthOK, "", ""},
	}}.run(t, dc1, dc2)

	statusFault{"private WAN address", func() { srv.Stop(); srv.StartServer() }, func() {
		gw.Stop()
		gw.WAN = right
		gw.StartGateway()
	}, []view{
		{dc3, "dc3", api.HealthOneWay, "cannot connect to gw1 at " + private, "set wan of the gateway"},
		{dc1, "dc3", api.HealthUnreachable, private, "is a private address"},
		{dc2, "dc3", api.HealthUnreachable, private, "is a private address"},
	}}.run(t, dcs...)

	other, err := subprocess.NewPKI(filepath.Join(t.TempDir(), "pki"), "")
	if err != nil {
		t.Fatal(err)
	}
	files, err := other.Issue(tlsutil.RoleServer, "dc3", "srv1")
	if err != nil {
		t.Fatal(err)
	}
	genuine := srv.TLS
	restart := func(files tlsutil.Files) func() {
		return func() { srv.Stop(); srv.TLS = files; srv.StartServer() }
	}
	different := []view{
		{dc3, "dc1", api.HealthUnreachable, "the certificates of dc3 and dc1 are signed by different CAs", "one CA"},
		{dc1, "dc3", api.HealthUnreachable, "the certificates of dc1 and dc3 are signed by different CAs", "one CA"},
	}
	statusFault{"other CA", restart(files), restart(genuine), different}.run(t, dcs...)

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
	statusFault{"rejected certificate", restart(files), restart(genuine), different}.run(t, dcs...)
}

// slowClock builds wanfed with a wall clock that is ten minutes slow: the build
// replaces time.Now. Nothing in wanfed knows of it. The build compiles the
// standard library again, which takes minutes of processor time.
func slowClock(t *testing.T) (program string) {
	t.Helper()
	root, err := exec.Command("go", "env", "GOROOT").Output()
	if err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(strings.TrimSpace(string(root)), "src", "time", "time.go")
	source, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	const now = "func Now() Time {\n\tsec, nsec, mono := runtimeNow()\n"
	if strings.Count(string(source), now) != 1 {
		t.Fatalf("%s has another func Now: adapt this test", file)
	}
	dir := t.TempDir()
	program = filepath.Join(dir, "wanfed")
	slow, overlay := filepath.Join(dir, "time.go"), filepath.Join(dir, "overlay.json")
	replace, err := json.Marshal(map[string]any{"Replace": map[string]string{file: slow}})
	if err := errors.Join(err,
		os.WriteFile(slow, []byte(strings.Replace(string(source), now, now+"\tsec -= 600\n", 1)), 0o600),
		os.WriteFile(overlay, replace, 0o600)); err != nil {
		t.Fatal(err)
	}
	out, err := exec.Command("go", "build", "-overlay", overlay, "-o", program,
		"github.com/wanfed/wanfed/cmd/wanfed").CombinedOutput()
	if err != nil {
		t.Fatalf("build wanfed with a slow clock: %v: %s", err, out)
	}
	return program
}

// TestStatusFaults_Clock starts the server of dc3 with a clock that is ten
// minutes slow, so that the new certificates of the others are not valid yet. It
// runs only with WANFED_CLOCK=1, because of its build.
func TestStatusFaults_Clock(t *testing.T) {
	if os.Getenv("WANFED_CLOCK") == "" {
		t.Skip("WANFED_CLOCK is not set")
	}
	lab.NeedNFT(t)
	slow := slowClock(t)
	l, past := lab.New(t), time.Now().Add(-time.Hour)
	var err error
	if l.PKI, err = subprocess.NewPKIAt(filepath.Join(t.TempDir(), "pki"), "", past); err != nil {
		t.Fatal(err)
	}
	l.PKI.Now = time.Time{}
	dc1, dc2 := l.Add(1, 1), l.Add(1, 1)
	l.PKI.Now = past
	dc3 := l.Add(1, 1)
	dcs := l.Datacenters()
	for _, dc := range dcs {
		dc.Start()
	}
	testutil.Await(t, waitLimit, "federation", func(ctx context.Context) error { return allOK(ctx, dcs...) })
	srv, right := dc3.Servers[0], ""
	const cause, remedy = "is not valid", "check the clocks"
	statusFault{"clock 10 min slow", func() {
		srv.Stop()
		right = l.Use(slow)
		srv.StartServer()
	}, func() {
		srv.Stop()
		l.Use(right)
		srv.StartServer()
	}, []view{
		{dc3, "dc1", api.HealthUnreachable, "a certificate between dc3 and dc1 " + cause, remedy},
		{dc3, "dc2", api.HealthUnreachable, "a certificate between dc3 and dc2 " + cause, remedy},
		{dc1, "dc3", api.HealthUnreachable, "a certificate between dc1 and dc3 " + cause, remedy},
		{dc2, "dc3", api.HealthUnreachable, "a certificate between dc2 and dc3 " + cause, remedy},
	}}.run(t, dcs...)
}

// dialGateways connects from the server of each datacenter to all others, once a
// second, until ctx ends. Of two gateways with jitter, one is often late.
// It returns the number of connections.
func dialGateways(ctx context.Context, dcs []*lab.Datacenter) (dialed int) {
	var all sync.WaitGroup
	var n atomic.Int64
	dial := func(from, to *lab.Datacenter) {
		ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
		defer cancel()
		raw, err := lab.DialIn(lab.One(from).NS)(ctx, "tcp", from.Gateways[0].LANAddr())
		if err != nil {
			return
		}
		defer raw.Close()
		// The server refuses the handshake, because the client has no certificate.
		name := tlsutil.ServerName("", to.Name, tlsutil.DefaultDomain)
		tls.Client(raw, &tls.Config{
			ServerName: name, InsecureSkipVerify: true, NextProtos: []string{wanfed.ProtoGRPC},
		}).HandshakeContext(ctx)
		n.Add(1)
	}
	for ctx.Err() == nil {
		for _, from := range dcs {
			for _, to := range dcs {
				if from != to {
					all.Go(func() { dial(from, to) })
				}
			}
		}
		backoff.Sleep(ctx, time.Second, nil)
	}
	all.Wait()
	return int(n.Load())
}

// TestStatusQuiet runs an idle federation over links with loss and jitter. No
// status may report a fault. WANFED_QUIET_TIME changes the duration.
func TestStatusQuiet(t *testing.T) {
	t.Parallel()
	quietTime := envDuration(t, "WANFED_QUIET_TIME", 20*time.Second)
	l := lab.NewWAN(t, wan.Link{Delay: 20 * time.Millisecond, Jitter: 200 * time.Millisecond, Loss: 0.01})
	for range 3 {
		l.Add(1, 2).Start()
	}
	testutil.Await(t, waitLimit, "federation", func(ctx context.Context) error { return allOK(ctx, l.Datacenters()...) })
	ctx, cancel := context.WithCancel(t.Context())
	dialed := make(chan int, 1)
	go func() { dialed <- dialGateways(ctx, l.Datacenters()) }()
	tick, checks := time.NewTicker(200*time.Millisecond), 0
	defer tick.Stop()
	for end := time.Now().Add(quietTime); time.Now().Before(end); checks++ {
		<-tick.C
		if err := allOK(t.Context(), l.Datacenters()...); err != nil {
			t.Errorf("false alarm after %d checks: %v", checks, err)
		}
	}
	cancel()
	n := <-dialed
	if n == 0 {
		t.Error("no connection between the datacenters was dialed")
	}
	t.Logf("%d checks and %d connections in %v", checks, n, quietTime)
}
