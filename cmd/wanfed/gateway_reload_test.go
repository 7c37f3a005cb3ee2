// SPDX-License-Identifier: MPL-2.0

package main

import (
	"crypto/tls"
	"encoding/json"
	"os"
	"path/filepath"
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
	gw.stderr.wait(t, `time=\S+ level=ERROR msg="cannot reload the settings" err="deny: .*127\.0\.0\.0/8 for the network or 127\.0\.0\.1 for the address`)
	set(`routes = "`+routes+`"`, `max_conns = 1000000000`)
	gw.stderr.wait(t, `time=\S+ level=ERROR msg="cannot reload the settings" err="max_conns 1000000000: .*ulimit -n`)
	served(false)

	set(`routes = "`+routes+`"`, `max_conns_per_source = 5`, `access_log = "`+access+`"`, `domain = "example"`)
	gw.stderr.wait(t, `time=\S+ level=WARN msg="settings need a new process: restart, or send SIGUSR2" settings=domain`)
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
