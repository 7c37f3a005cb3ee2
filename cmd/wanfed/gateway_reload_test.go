// SPDX-License-Identifier: MPL-2.0

package main

import (
	"context"
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/wanfed/wanfed/internal/testutil"
)

// accessLine is a line of the access log, with the fields that these tests
// read.
type accessLine struct{ SNI, End, Upstream string }

// awaitAccessLine waits for a file with one line of an access log.
func awaitAccessLine(t testing.TB, path string) (line accessLine) {
	t.Helper()
	testutil.Await(t, processTimeout, "a line in the access log", func(context.Context) error {
		b, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		return json.Unmarshal(b, &line)
	})
	return line
}

// reloadTest is a running gateway whose settings file the test changes.
type reloadTest struct {
	gw                             *runningCommand
	upstream, config, routes, addr string
}

func newReloadTest(t *testing.T) *reloadTest {
	t.Helper()
	dir := t.TempDir()
	r := &reloadTest{
		upstream: upstreamTLS(t, "one", serverTLS(t)),
		config:   filepath.Join(dir, "gateway.hcl"), routes: filepath.Join(dir, "routes.hcl"),
	}
	writeFile(t, r.routes, `route "*.server.dc2.wanfed" { to = ["`+r.upstream+`"] }`)
	r.write(t)
	r.gw = startCommand(t, "gateway", "--config-file", r.config, "--log-level", "info")
	r.addr = r.gw.addr(t)
	return r
}

// write writes a settings file with additional lines.
func (r *reloadTest) write(t *testing.T, lines ...string) {
	t.Helper()
	common := []string{`listen = ["127.0.0.1:0"]`, `admin_addr = "127.0.0.1:0"`, `routes = "` + r.routes + `"`}
	writeFile(t, r.config, strings.Join(append(common, lines...), "\n"))
}

// set writes a settings file with additional lines, and reloads it.
func (r *reloadTest) set(t *testing.T, lines ...string) {
	t.Helper()
	r.write(t, lines...)
	reload(t)
}

// checkServed checks whether the gateway serves a connection.
func (r *reloadTest) checkServed(t *testing.T, want bool) {
	t.Helper()
	if got, err := readThrough(r.addr, "srv1.server.dc2.wanfed"); (got == "one") != want {
		t.Errorf("connection served = %q, %v, want served: %v", got, err, want)
	}
}

func TestGatewayReload_LiveSettings(t *testing.T) {
	r := newReloadTest(t)
	admin := r.gw.adminURL(t)
	checkMetric := func(want string) {
		t.Helper()
		if _, metrics := get(t, admin+"/metrics"); !strings.Contains(metrics, want+"\n") {
			t.Errorf("/metrics = %s\nwant %s", metrics, want)
		}
	}
	r.checkServed(t, true)

	r.set(t, `deny = ["127.0.0.0/8"]`, `max_conns = 77`)
	r.gw.awaitLog(t, `level=INFO msg="settings changed" settings="max_conns, deny"`)
	r.checkServed(t, false)
	checkMetric(`wanfed_gateway_refused_total{listener="listen",reason="denied"} 1`)
	checkMetric("wanfed_gateway_max_conns 77")

	r.set(t, `deny = ["127.0.0.1/8"]`)
	r.gw.awaitLog(t, `level=ERROR msg="cannot reload the settings" `+
		`err="deny: .*127\.0\.0\.0/8 for the network or 127\.0\.0\.1 for the address`)
	r.set(t, `max_conns = 1000000000`)
	r.gw.awaitLog(t, `level=ERROR msg="cannot reload the settings" err="max_conns 1000000000: .*ulimit -n`)
	r.checkServed(t, false)

	r.set(t, `max_conns_per_source = 5`, `domain = "example"`)
	r.gw.awaitLog(t, `level=WARN msg="settings need a new process: restart, or send SIGUSR2" settings=domain`)
	r.checkServed(t, true)
	r.gw.awaitLog(t, `level=INFO msg="settings changed" settings="max_conns, max_conns_per_source, deny"`)
	r.gw.stop()
}

// TestGatewayReload_AccessLog opens an access log. After log rotation renamed
// the file, a reload opens a new one.
func TestGatewayReload_AccessLog(t *testing.T) {
	r := newReloadTest(t)
	path := filepath.Join(t.TempDir(), "access.json")
	access := `access_log = "` + path + `"`
	r.set(t, access, `max_conns_per_source = 5`)
	r.gw.awaitLog(t, `level=INFO msg="settings changed" settings="max_conns_per_source, access_log"`)
	r.checkServed(t, true)
	want := accessLine{SNI: "srv1.server.dc2.wanfed", End: "done", Upstream: r.upstream}
	if got := awaitAccessLine(t, path); got != want {
		t.Errorf("access log = %+v, want %+v", got, want)
	}
	if err := os.Rename(path, path+".1"); err != nil {
		t.Fatal(err)
	}
	r.set(t, access, `log_level = "debug"`) // the flag overrides it
	r.gw.awaitLog(t, `level=INFO msg="settings changed" settings=max_conns_per_source`)
	r.checkServed(t, true)
	awaitAccessLine(t, path)
	r.gw.stop()
}
