// SPDX-License-Identifier: MPL-2.0

package main

import (
	"crypto/tls"
	"encoding/json"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/wanfed/wanfed/tlsutil"
	"github.com/wanfed/wanfed/tlsutil/tlstest"
)

// TestGatewayReload changes the settings of a running gateway. It has a signal sent to this process, so it does not run in
// parallel with another that takes it.
func TestGatewayReload(t *testing.T) {
	f := tlstest.NewCA(t).Files(t, tlsutil.RoleServer, "srv1", "dc2")
	cert, err := tls.LoadX509KeyPair(f.Cert, f.Key)
	if err != nil {
		t.Fatal(err)
	}
	up := upstreamTLS(t, "one", &tls.Config{Certificates: []tls.Certificate{cert}})
	dir := t.TempDir()
	config, routes, access := filepath.Join(dir, "gateway.hcl"), filepath.Join(dir, "routes.hcl"), filepath.Join(dir, "access.json")
	write(t, routes, `route "*.server.dc2.wanfed" { to = ["`+up+`"] }`)
	set := func(lines ...string) {
		t.Helper()
		write(t, config, strings.Join(append(lines, `listen = ["127.0.0.1:0"]`, `admin_addr = "127.0.0.1:0"`), "\n"))
		if err := syscall.Kill(os.Getpid(), syscall.SIGHUP); err != nil {
			t.Fatal(err)
		}
	}
	write(t, config, "listen = [\"127.0.0.1:0\"]\nadmin_addr = \"127.0.0.1:0\"\nroutes = \""+routes+"\"")
	gw := startCommand(t, "gateway", "--config-file", config, "--log-level", "info")
	_, rest, _ := strings.Cut(gw.line, "listening on ")
	addr, _, _ := strings.Cut(rest, ",")
	admin := gw.stderr.wait(t, `time=\S+ level=INFO msg="admin address" addr=(\S+)`)[1]
	served := func(want bool) {
		t.Helper()
		if got, err := ask(addr, "srv1.server.dc2.wanfed"); (got == "one") != want {
			t.Errorf("answer %q, %v; served should be %v", got, err, want)
		}
	}
	has := func(want string) {
		t.Helper()
		if _, metrics := get(t, admin+"/metrics"); !strings.Contains(metrics, want+"\n") {
			t.Errorf("/metrics lacks %s", want)
		}
	}
	served(true)

	set(`routes = "`+routes+`"`, `deny = ["127.0.0.0/8"]`, `max_conns = 77`)
	gw.stderr.wait(t, `time=\S+ level=INFO msg="settings changed" settings="max_conns, deny"`)
	served(false)
	has(`wanfed_gateway_refused_total{listener="listen",reason="denied"} 1`)
	has("wanfed_gateway_max_conns 77")

	set(`routes = "`+routes+`"`, `deny = ["127.0.0.1/8"]`)
	gw.stderr.wait(t, `time=\S+ level=ERROR msg="settings not changed" err="deny: .*127\.0\.0\.0/8 for the network, 127\.0\.0\.1 for the address`)
	set(`routes = "`+routes+`"`, `max_conns = 1000000000`)
	gw.stderr.wait(t, `time=\S+ level=ERROR msg="settings not changed" err="max_conns 1000000000: .*ulimit -n`)
	served(false)

	set(`routes = "`+routes+`"`, `max_conns_per_source = 5`, `access_log = "`+access+`"`, `domain = "example"`)
	gw.stderr.wait(t, `time=\S+ level=WARN msg="settings that only a new process can change.*" settings=domain`)
	served(true)
	gw.stderr.wait(t, `time=\S+ level=INFO msg="settings changed" settings="max_conns, max_conns_per_source, deny, access_log"`)

	// Another has renamed the log: it is opened anew.
	wait := func(path string) (line struct{ SNI, End, Upstream string }) {
		t.Helper()
		for {
			b, err := os.ReadFile(path)
			if err != nil {
				t.Fatal(err)
			}
			if json.Unmarshal(b, &line) == nil {
				return line
			}
		}
	}
	if l := wait(access); l.SNI != "srv1.server.dc2.wanfed" || l.End != "done" || l.Upstream != up {
		t.Errorf("access log: %+v", l)
	}
	if err := os.Rename(access, access+".1"); err != nil {
		t.Fatal(err)
	}
	set(`routes = "`+routes+`"`, `log_level = "debug"`, `access_log = "`+access+`"`) // the flag beats the file
	gw.stderr.wait(t, `time=\S+ level=INFO msg="settings changed" settings=max_conns_per_source`)
	served(true)
	wait(access)
	gw.stop()
}

func TestMixSettings(t *testing.T) {
	now, next := defaultGatewaySettings(), defaultGatewaySettings()
	now.LAN, now.WANDeny = "10.0.0.5:8444", []string{"192.0.2.0/24"}
	next.LAN, next.DrainTime = "10.0.0.6:8444", "1h"
	mixed, changed, fixed := mixSettings(now, next)
	if mixed.LAN != now.LAN || mixed.DrainTime != "1h" || mixed.WANDeny != nil ||
		!slices.Equal(changed, []string{"wan_deny", "drain_time"}) || !slices.Equal(fixed, []string{"lan"}) {
		t.Errorf("%+v, changed %v, fixed %v", mixed, changed, fixed)
	}
	if now.WANDeny == nil {
		t.Error("the settings in force were changed")
	}
}

func TestCheckLimits(t *testing.T) {
	good := defaultGatewaySettings()
	good.LANAllow, good.WANDeny = []string{"10.0.0.0/8", "2001:db8::/32", "192.0.2.1", "2001:db8::1"}, []string{"0.0.0.0/0"}
	good.MaxConns, good.MaxPerSource, good.DrainGrace = 100000, -1, "0s"
	if err := good.checkLimits(); err != nil {
		t.Error(err)
	}
	if got := networks(good.LANAllow); len(got) != 4 || got[2].String() != "192.0.2.1/32" || got[3].String() != "2001:db8::1/128" {
		t.Errorf("%v", got)
	}
	bad := defaultGatewaySettings()
	bad.MaxPerUpstream = -1
	bad.ProxyProtocol = []string{"balancer"}
	bad.WANAllow, bad.LANDeny = []string{"10.0.0.0/33", "10.0.0.0/8"}, []string{"10.1.2.3/8", "fe80::1%eth0", "host"}
	bad.MaxConns, bad.AccessLogSample, bad.DrainTime, bad.HandoverDrainTime = -1, 0, "2", "-1s"
	err := bad.checkLimits()
	if err == nil {
		t.Fatal("no error")
	}
	for _, want := range []string{
		`wan_allow: "10.0.0.0/33" is no network`, `lan_deny: "10.1.2.3/8" is an address in a network: write 10.0.0.0/8 for the network, 10.1.2.3 for the address`,
		`lan_deny: "fe80::1%eth0" is no network`, `lan_deny: "host" is no network`, `proxy_protocol: "balancer" is no network`, "max_conns is -1: must be 0 to", "max_conns_per_upstream is -1: must be 0 to",
		"access_log_sample is 0: must be 1 to", `drain_time "2" is not a length of time`, `handover_drain_time "-1s"`,
	} {
		if !strings.Contains(err.Error(), want) {
			t.Errorf("no fault has %q:\n%v", want, err)
		}
	}
	if n := len(listOf(err)); n != 10 {
		t.Errorf("%d faults:\n%v", n, err)
	}
	far := defaultGatewaySettings()
	far.MaxConns, far.MaxPerSource, far.MaxPerUpstream, far.AccessLogSample = math.MaxInt, -2, math.MaxInt, math.MaxInt
	far.DrainGrace, far.DrainTime, far.HandoverDrainTime = "2h", "1000h", "1000000h"
	if got, want := fmt.Sprint(far.checkLimits()), "7 faults:"; !strings.HasPrefix(got, want) ||
		!strings.Contains(got, "max_conns_per_source is -2: must be -1 to") || !strings.Contains(got, "drain_grace is 2h: must be 1h0m0s or less; a gateway that was told to stop") {
		t.Error(got)
	}
	per := defaultGatewaySettings()
	for set, want := range map[int]int{0: 75, -1: -1, 10: 10} {
		if per.MaxPerSource = set; per.policy(listenerWAN, 100).MaxPerSource != want {
			t.Errorf("max_conns_per_source %d of 100: %d", set, per.policy(listenerWAN, 100).MaxPerSource)
		}
	}
}
