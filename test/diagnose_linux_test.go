// SPDX-License-Identifier: MPL-2.0

package test

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/wanfed/wanfed/diagnose"
	"github.com/wanfed/wanfed/internal/subprocess"
	"github.com/wanfed/wanfed/internal/testutil"
	"github.com/wanfed/wanfed/test/lab"
	"github.com/wanfed/wanfed/tlsutil"
)

// maxDiagnose bounds the time of wanfed diagnose.
const maxDiagnose = 10 * time.Second

// serverFile writes a file with the settings of a running server, and returns
// its path.
func serverFile(t *testing.T, n *lab.Node) string {
	t.Helper()
	text := fmt.Sprintf("dc = %q\nnode = %q\ndata_dir = %q\nca_file = %q\ncert_file = %q\nkey_file = %q\nbind = %q\n"+
		"primary_datacenter = %q\n", n.DC().Name, n.Name, n.DataDir(), n.TLS.CA, n.TLS.Cert, n.TLS.Key, n.LAN, "dc1")
	if n.DC().Name != "dc1" {
		text += "primary_gateways = [\"198.18.1.1:8443\"]\n"
	}
	path := filepath.Join(t.TempDir(), "server.hcl")
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

// gatewayFile is serverFile for a gateway.
func gatewayFile(t *testing.T, n *lab.Node) string {
	t.Helper()
	text := fmt.Sprintf("dc = %q\nnode = %q\ndata_dir = %q\nca_file = %q\ncert_file = %q\nkey_file = %q\nlan = %q\n"+
		"wan = %q\nservers = [%q]\n", n.DC().Name, n.Name, t.TempDir(), n.TLS.CA, n.TLS.Cert, n.TLS.Key, n.LANAddr(),
		n.WANAddr(), lab.One(n.DC()).ServerAddr())
	path := filepath.Join(t.TempDir(), "gateway.hcl")
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

// runDiagnose runs wanfed diagnose on the machine of a server or a gateway. The command must
// be fast, and its exit status must agree with the findings.
func runDiagnose(t *testing.T, n *lab.Node, dcs ...string) (r diagnose.Report) {
	t.Helper()
	file := serverFile(t, n)
	if n.WAN != "" {
		file = gatewayFile(t, n)
	}
	start := time.Now()
	out, err := n.CLI(append([]string{"diagnose", "--config-file", file, "--output", "json"}, dcs...)...)
	if took := time.Since(start); took > maxDiagnose {
		t.Errorf("wanfed diagnose took %v, want at most %v", took, maxDiagnose)
	}
	if e := json.NewDecoder(strings.NewReader(out)).Decode(&r); e != nil {
		t.Fatalf("wanfed diagnose = %v, %q", e, out)
	}
	if (err != nil) != r.Failed() {
		t.Errorf("wanfed diagnose = %v with these findings:\n%s", err, findings(r))
	}
	return r
}

func findings(r diagnose.Report) string {
	var b strings.Builder
	for _, f := range r.Findings {
		fmt.Fprintf(&b, "%-4s  %s: %s; %s\n", f.Result, f.Check, f.Cause, f.Remedy)
	}
	return b.String()
}

// firstFinding is what the first line of wanfed diagnose must contain, at a
// server.
type firstFinding struct {
	at            *lab.Node
	result        diagnose.Result
	cause, remedy string
}

func (w firstFinding) check(t *testing.T, fault string) {
	t.Helper()
	r := runDiagnose(t, w.at)
	f := r.Findings[0]
	if f.Result != w.result || !strings.Contains(f.Cause, w.cause) || !strings.Contains(f.Remedy, w.remedy) {
		t.Errorf("%s, at %s: first finding is %+v, want %s %q %q; all findings:\n%s", fault, w.at.DC().Name, f, w.result,
			w.cause, w.remedy, findings(r))
	}
	t.Logf("%s, at %s: %.1f s: %s: %s; %s", fault, w.at.DC().Name, r.Duration, f.Check, f.Cause, f.Remedy)
}

// diagnosed is a fault with what wanfed diagnose must find.
type diagnosed struct {
	fault statusFault
	first []firstFinding
}

// run injects the fault and diagnoses it, at once where the fault is visible
// from a machine, and otherwise when the status has it.
func (d diagnosed) run(t *testing.T, dcs ...*lab.Datacenter) {
	t.Helper()
	f := d.fault
	f.inject()
	testutil.Await(t, faultVisible, "status with the fault: "+f.name, func(ctx context.Context) error {
		for _, v := range f.views {
			if err := v.check(ctx); err != nil {
				return err
			}
		}
		return nil
	})
	for _, w := range d.first {
		w.check(t, f.name)
	}
	f.heal()
	testutil.Await(t, healVisible, "status without the fault: "+f.name, func(ctx context.Context) error {
		return allOK(ctx, dcs...)
	})
}

// dropLarge makes the WAN interface of a gateway drop large packets in both
// directions, without ICMP.
func dropLarge(gw *lab.Node) {
	gw.NFT(`table inet mtu {
		chain in { type filter hook input priority 0; iifname wan meta length > 1300 drop; }
		chain out { type filter hook output priority 0; oifname wan meta length > 1300 drop; }
	}`)
}

// TestDiagnose runs wanfed diagnose in a federation that works, directly after
// faults that the status has not found yet, and without a server.
func TestDiagnose(t *testing.T) {
	_, dcs := startLab(t, 2)
	dc1, dc2 := dcs[0], dcs[1]
	srv1, srv2, gw := lab.One(dc1), lab.One(dc2), dc2.Gateways[0]
	if r := runDiagnose(t, srv1); r.Failed() || r.Findings[0].Result != diagnose.OK {
		t.Errorf("findings without a fault:\n%s", findings(r))
	}
	for text, n := range map[string]int{"TCP, TLS and echo": 1, "served by this datacenter": 2} {
		if r := runDiagnose(t, dc1.Gateways[0], "dc2"); r.Failed() || strings.Count(findings(r), text) != n {
			t.Errorf("findings on the machine of a gateway:\n%s\nwant %q %d times", findings(r), text, n)
		}
	}
	checkBundle(t, srv1)
	out, err := srv1.CLI("benchmark", "dc2", "--duration", "1s")
	if err != nil || !strings.Contains(out, "p99") || !strings.Contains(out, "Loss:        0 of ") {
		t.Errorf("wanfed benchmark = %v, %q, want no loss", err, out)
	}
	t.Log(out)
	dropLarge(gw)
	firstFinding{srv1, diagnose.Fail, "large packets through " + dc1.Gateways[0].LANAddr() + " are lost", "permit ICMP"}.
		check(t, "small MTU")
	gw.NFT("delete table inet mtu")
	gw.Stop()
	firstFinding{srv1, diagnose.Fail, "dc2 does not respond at " + gw.WANAddr(), "check that a gateway of dc2 listens"}.
		check(t, "gateway stopped")
	srv2.Stop()
	firstFinding{srv2, diagnose.Warn, "no server runs at http://127.0.0.1:8500", "start it"}.check(t, "no server")
	if r := runDiagnose(t, srv2); !strings.Contains(findings(r), "path to dc1 via "+dc1.Gateways[0].WANAddr()) {
		t.Errorf("findings without a server have no path:\n%s", findings(r))
	}
}

// checkBundle requires that a bundle of the machine of a server has its
// profiles, with the certificate of the server.
func checkBundle(t *testing.T, n *lab.Node) {
	t.Helper()
	path := filepath.Join(t.TempDir(), "bundle.tar.gz")
	if out, err := n.CLI("diagnose", "--config-file", serverFile(t, n), "--bundle", path); err != nil {
		t.Fatalf("wanfed diagnose --bundle = %v, %s", err, out)
	}
	list, err := exec.Command("tar", "-xzf", path, "-C", t.TempDir(), "-v", "-O", "wanfed/server/cpu.pprof",
		"wanfed/server/heap.pprof", "wanfed/server/goroutines.txt").Output()
	if err != nil || !bytes.Contains(list, []byte("goroutine profile: total")) {
		t.Errorf("profiles in the bundle = %v %.300q, want all three", err, list)
	}
}

// TestDiagnose_Matrix runs wanfed diagnose with the faults of TestStatusFaults.
func TestDiagnose_Matrix(t *testing.T) {
	onlyChaos(t)
	_, dcs := startLab(t, 3)
	dc1, dc3 := dcs[0], dcs[2]
	srv1, srv3, gw := lab.One(dc1), lab.One(dc3), dc3.Gateways[0]
	closed := func(chain, match string) func() {
		return func() {
			gw.NFT(fmt.Sprintf("table inet closed { chain c { type filter hook %s priority 0; %s tcp dport %d drop; }\n}",
				chain, match, lab.WANPort))
		}
	}
	open := func() { gw.NFT("delete table inet closed") }
	silent := firstFinding{srv1, diagnose.Fail, "dc3 does not respond at " + gw.WANAddr(),
		"check that a gateway of dc3 listens there"}
	unreachable := []view{{dc1, "dc3", "unreachable", "", ""}}
	for _, d := range []diagnosed{
		{statusFault{"gateway stopped", gw.Stop, func() { gw.StartGateway() }, append([]view{
			{dc3, "dc3", "degraded", "dc3 has no gateway", ""},
		}, unreachable...)}, []firstFinding{silent, {srv3, diagnose.Fail, "dc3 has no gateway", "start a gateway here"}}},
		{statusFault{"gateway frozen", gw.Suspend, gw.Resume, append([]view{
			{dc3, "dc3", "degraded", "no gateway of dc3 is healthy", ""},
		}, unreachable...)}, []firstFinding{silent,
			{srv3, diagnose.Fail, "no gateway of dc3 is healthy: gw1", "start a gateway, or read its log"}}},
		{statusFault{"inbound port closed", closed("input", "iifname wan"), open, append([]view{
			{dc3, "dc3", "one way", "", ""},
		}, unreachable...)}, []firstFinding{silent,
			{srv3, diagnose.Fail, "dc1 and dc2 cannot connect to gw1 at " + gw.WANAddr(), "open this port"}}},
		{statusFault{"outbound port closed", closed("output", "oifname wan"), open, []view{
			{dc1, "dc3", "one way", "", ""}, {dc3, "dc1", "unreachable", "", ""},
		}}, []firstFinding{
			{srv1, diagnose.Fail, "dc3 cannot connect to gw1 at " + dc1.Gateways[0].WANAddr(), "open this port"},
			{srv3, diagnose.Fail, "dc1 does not respond at " + dc1.Gateways[0].WANAddr(), "no firewall is between"},
		}},
		{statusFault{"server frozen", srv3.Suspend, srv3.Resume, unreachable}, []firstFinding{silent,
			{srv3, diagnose.Fail, "accepts connections and does not respond", "stuck"}}},
	} {
		d.run(t, dcs...)
	}

	gw2 := dc3.AddGateway()
	gw2.StartGateway()
	testutil.Await(t, waitLimit, "dc3 with two gateways", func(ctx context.Context) error {
		return gatewaysOf(ctx, dcs, "dc3", 2)
	})
	time.Sleep(3 * time.Second) // until the first probes of the gateways have worked
	diagnosed{statusFault{"inbound port of one of two gateways closed", closed("input", "iifname wan"), open, []view{
		{dc1, "dc3", "degraded", "dc1 and dc2 cannot connect to gw1", ""},
		{dc3, "dc3", "degraded", "dc1 and dc2 cannot connect to gw1", ""},
	}}, []firstFinding{
		{srv1, diagnose.Warn, "dc1 and dc2 cannot connect to gw1 at " + gw.WANAddr(), "open this port"},
		{srv3, diagnose.Warn, "dc1 and dc2 cannot connect to gw1 at " + gw.WANAddr(), "open this port"},
	}}.run(t, dcs...)
	gw2.Stop()
	wan := gw2.WAN
	diagnosed{statusFault{"one of two gateways has a private WAN address", func() {
		gw2.WAN = "10.77.0.5"
		gw2.StartGateway("--wan-bind", wan+":8443")
	}, func() {
		gw2.Stop()
		gw2.WAN = wan
		gw2.StartGateway()
	}, []view{
		{dc1, "dc3", "degraded", "dc1 and dc2 cannot connect to gw2", ""},
		{dc3, "dc3", "degraded", "dc1 and dc2 cannot connect to gw2", ""},
	}}, []firstFinding{
		{srv1, diagnose.Warn, "10.77.0.5:8443: no route; is it the private address of a NAT?", "set wan of the gateway"},
		{srv3, diagnose.Warn, "10.77.0.5:8443: no route; is it the private address of a NAT?", "set wan of the gateway"},
	}}.run(t, dcs...)
}

// TestDiagnose_MatrixSettings runs wanfed diagnose with the faults of
// TestStatusFaults_Settings.
func TestDiagnose_MatrixSettings(t *testing.T) {
	onlyChaos(t)
	l, dcs := startLab(t, 2)
	dc1, dc3 := dcs[0], l.Add(1, 1)
	dcs = l.Datacenters()
	srv1, srv, gw := lab.One(dc1), dc3.Servers[0], dc3.Gateways[0]
	right := gw.WAN

	srv.StartServer("--primary-datacenter", "dc9")
	gw.WAN = "10.77.0.5"
	gw.StartGateway("--wan-bind", right+":8443")
	diagnosed{statusFault{"wrong primary", func() {}, func() {}, []view{
		{dc3, "dc9", "unreachable", "does not know the datacenter dc9", ""},
	}}, []firstFinding{
		{srv, diagnose.Fail, "does not know the datacenter dc9", "check primary_datacenter"},
	}}.run(t, dcs[:2]...)
	diagnosed{statusFault{"private WAN address", func() { srv.Stop(); srv.StartServer() }, func() {
		gw.Stop()
		gw.WAN = right
		gw.StartGateway()
	}, []view{
		{dc3, "dc3", "one way", "", ""}, {dc1, "dc3", "unreachable", "", ""},
	}}, []firstFinding{
		{srv1, diagnose.Fail, "10.77.0.5:8443", "is a private address"},
		{srv, diagnose.Fail, "cannot connect to gw1 at 10.77.0.5:8443", "set wan of the gateway"},
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
	views := []view{
		{dc3, "dc1", "unreachable", "different CAs", ""}, {dc1, "dc3", "unreachable", "different CAs", ""},
	}
	first := []firstFinding{
		{srv1, diagnose.Fail, "the certificates of dc1 and dc3 are signed by different CAs", "one CA"},
		{srv, diagnose.Fail, "the certificates of dc3 and dc1 are signed by different CAs", "one CA"},
	}
	diagnosed{statusFault{"other CA", restart(files), restart(genuine), views}, first}.run(t, dcs...)

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
	diagnosed{statusFault{"rejected certificate", restart(files), restart(genuine), views}, first}.run(t, dcs...)
}
