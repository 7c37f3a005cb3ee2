// SPDX-License-Identifier: MPL-2.0

package main

import (
	"encoding/json"
	"net"
	"net/http"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/wanfed/wanfed/gatewayd"
	"github.com/wanfed/wanfed/internal/testutil"
)

// startStandalone starts a gateway on a file of routes and returns its admin
// address.
func startStandalone(t *testing.T, routes string, args ...string) (gw *runningCommand, admin string) {
	t.Helper()
	file := filepath.Join(t.TempDir(), "routes.hcl")
	writeFile(t, file, routes)
	gw = startCommand(t, append([]string{
		"gateway", "--listen", "127.0.0.1:0", "--routes", file, "--admin-addr", "127.0.0.1:0",
	}, args...)...)
	return gw, strings.TrimPrefix(gw.adminURL(t), "http://")
}

const threeRoutes = `
route "*.server.dc2.wanfed" {
  to      = ["198.51.100.2:8443", "198.51.100.3:8443"]
  ordered = true
}
route "server.dc1.wanfed" { to = ["10.0.0.1:8300", "10.0.0.2:8300"] }
route "srv1.server.dc1.wanfed" {
  to        = ["10.0.0.1:8300"]
  protocols = ["wanfed/gossip/1", "h2"]
}
`

func TestGatewayRoutes_Output(t *testing.T) {
	_, admin := startStandalone(t, threeRoutes)
	config := filepath.Join(t.TempDir(), "gateway.hcl")
	writeFile(t, config, `admin_addr = "`+admin+`"`)
	want := `Listener  Name                    Open  Use     Addresses                             Protocols
listen    *.server.dc2.wanfed     0, 0  first   198.51.100.2:8443, 198.51.100.3:8443  any
listen    server.dc1.wanfed       0, 0  shared  10.0.0.1:8300, 10.0.0.2:8300          any
listen    srv1.server.dc1.wanfed  0     -       10.0.0.1:8300                         wanfed/gossip/1, h2
`
	for _, where := range [][]string{{"--admin-addr", admin}, {"--config-file", config}} {
		got, _, err := call(t, append([]string{"gateway", "routes", "--output", "wide"}, where...)...)
		if err != nil || got != want {
			t.Errorf("gateway routes %v = %v\n%s\nwant\n%s", where, err, got, want)
		}
	}
	got, _, err := call(t, "gateway", "routes", "--admin-addr", admin, "--output", "json")
	var list map[string][]gatewayd.Route
	if err != nil || json.Unmarshal([]byte(got), &list) != nil || len(list["listen"]) != 3 ||
		!list["listen"][0].Ordered || len(list["listen"][0].Open) != 2 {
		t.Errorf("gateway routes --output json = %v\n%s\nwant 3 routes, the first ordered", err, got)
	}
}

func TestGatewayRoutes_Errors(t *testing.T) {
	for want, args := range map[string][]string{
		"--admin-addr 127.0.0.1:9102":               nil,
		"is not a loopback address":                 {"--admin-addr", "192.0.2.1:80"},
		"check that it runs with this --admin-addr": {"--admin-addr", "127.0.0.1:1"},
		"unexpected argument":                       {"all"},
	} {
		_, _, err := call(t, append([]string{"gateway", "routes"}, args...)...)
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("gateway routes %v = %v, want an error with %q", args, err, want)
		}
	}
}

func TestAdminAddress(t *testing.T) {
	_, plain := startStandalone(t, threeRoutes)
	if code, body := get(t, "http://"+plain+"/debug/pprof/heap"); code != http.StatusNotFound {
		t.Errorf("/debug/pprof/heap without the setting = %d %.100s, want %d", code, body, http.StatusNotFound)
	}
	gw, admin := startStandalone(t, threeRoutes, "--pprof")
	for path, want := range map[string]string{
		"/debug/pprof/goroutine?debug=1": "goroutine profile",
		"/debug/pprof/profile?seconds=1": "",
		"/healthz":                       "ok",
		"/readyz":                        "ok",
	} {
		if code, body := get(t, "http://"+admin+path); code != http.StatusOK || !strings.Contains(body, want) {
			t.Errorf("%s = %d %.100s, want %d %s", path, code, body, http.StatusOK, want)
		}
	}
	req, err := http.NewRequest(http.MethodGet, "http://"+admin+"/routes", nil)
	if err != nil {
		t.Fatal(err)
	}
	req.Host = "elsewhere.example"
	client := http.Client{Timeout: 20 * time.Second, Transport: &http.Transport{DisableKeepAlives: true}}
	resp, err := client.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	if resp.Body.Close(); resp.StatusCode != http.StatusForbidden {
		t.Errorf("status for another host name = %s, want %d", resp.Status, http.StatusForbidden)
	}
	_, metrics := get(t, "http://"+admin+"/metrics")
	for _, want := range []string{
		`wanfed_gateway_hello_seconds_bucket\{listener="listen",route="exact",le="0\.0005"\} 0`,
		`wanfed_gateway_dial_seconds_bucket\{listener="listen",route="wildcard",le="\+Inf"\} 0`,
		`wanfed_gateway_stopping 0`, `wanfed_gateway_max_conns \d+`, `wanfed_gateway_max_files \S+`,
		`wanfed_gateway_sources\{listener="listen"\} 0`, `wanfed_gateway_access_log_dropped_total 0`,
	} {
		if !regexp.MustCompile(`(?m)^` + want + `$`).MatchString(metrics) {
			t.Errorf("/metrics = %s\nwant a match of %s", metrics, want)
		}
	}
	gw.stop()
}

// The number of open connections of an address includes other routes to it.
func TestGatewayRoutes_OpenConnections(t *testing.T) {
	up, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer up.Close()
	gw, admin := startStandalone(t, `
route "a.example" { to = ["`+up.Addr().String()+`"] }
route "b.example" { to = ["127.0.0.1:1", "`+up.Addr().String()+`"] }
`)
	counts := regexp.MustCompile(`  \d(, \d)*  `)
	open := func() string {
		t.Helper()
		got, _, err := call(t, "gateway", "routes", "--admin-addr", admin)
		if err != nil {
			t.Fatal(err)
		}
		return strings.Join(counts.FindAllString(got, -1), "")
	}
	c, err := net.Dial("tcp", gw.addr(t))
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	c.Write(clientHello(t, "a.example"))
	u, err := up.Accept()
	if err != nil {
		t.Fatal(err)
	}
	defer u.Close()
	u.SetReadDeadline(time.Now().Add(20 * time.Second))
	if _, err := u.Read(make([]byte, 1)); err != nil { // the connection is routed
		t.Fatal(err)
	}
	// The gateway counts the connection after it has sent the ClientHello.
	testutil.Eventually(t, 10*time.Second, func() bool { return open() == "  1    0, 1  " }, "one open connection of both routes")
	u.Close()
	c.Close()
	testutil.Eventually(t, 10*time.Second, func() bool { return open() == "  0    0, 0  " }, "no open connections")
	gw.stop()
}
