// SPDX-License-Identifier: MPL-2.0

package test

import (
	"bytes"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/wanfed/wanfed/diagnose"
	"github.com/wanfed/wanfed/test/lab"
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
	gatewayFaults(t, statusFault.diagnose)
}

// TestDiagnose_MatrixSettings runs wanfed diagnose with the faults of
// TestStatusFaults_Settings.
func TestDiagnose_MatrixSettings(t *testing.T) {
	onlyChaos(t)
	settingsFaults(t, statusFault.diagnose)
}
