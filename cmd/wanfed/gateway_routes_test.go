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
)

func TestGatewayRoutesCommand(t *testing.T) {
	routes := filepath.Join(t.TempDir(), "routes.hcl")
	write(t, routes, `
route "*.server.dc2.wanfed" {
  to      = ["198.51.100.2:8443", "198.51.100.3:8443"]
  ordered = true
}
route "server.dc1.wanfed" { to = ["10.0.0.1:8300", "10.0.0.2:8300"] }
route "srv1.server.dc1.wanfed" {
  to        = ["10.0.0.1:8300"]
  protocols = ["wanfed/gossip/1", "h2"]
}
`)
	gw := startCommand(t, "gateway", "--listen", "127.0.0.1:0", "--routes", routes, "--admin-addr", "127.0.0.1:0")
	admin := gw.stderr.wait(t, `time=\S+ level=INFO msg="admin address" addr=http://(\S+)`)[1]
	config := filepath.Join(t.TempDir(), "gateway.hcl")
	write(t, config, `admin_addr = "`+admin+`"`)
	for _, where := range [][]string{{"--admin-addr", admin}, {"--config-file", config}} {
		got, _, err := call(t, append([]string{"gateway", "routes", "--output", "wide"}, where...)...)
		want := `Listener  Name                    Open  Use     Addresses                             Protocols
listen    *.server.dc2.wanfed     0, 0  first   198.51.100.2:8443, 198.51.100.3:8443  any
listen    server.dc1.wanfed       0, 0  shared  10.0.0.1:8300, 10.0.0.2:8300          any
listen    srv1.server.dc1.wanfed  0     -       10.0.0.1:8300                         wanfed/gossip/1, h2
`
		if err != nil || got != want {
			t.Errorf("%v: %v\n%s\nwant\n%s", where, err, got, want)
		}
	}
	got, _, err := call(t, "gateway", "routes", "--admin-addr", admin, "--output", "json")
	var list map[string][]gatewayd.Route
	if err != nil || json.Unmarshal([]byte(got), &list) != nil || len(list["listen"]) != 3 || !list["listen"][0].Ordered || len(list["listen"][0].Open) != 2 {
		t.Errorf("%v: %s", err, got)
	}
	for want, args := range map[string][]string{
		"--admin-addr 127.0.0.1:9102":               nil,
		"is not a loopback address":                 {"--admin-addr", "192.0.2.1:80"},
		"check that it runs with this --admin-addr": {"--admin-addr", "127.0.0.1:1"},
		"unexpected argument":                       {"all"},
	} {
		if _, _, err := call(t, append([]string{"gateway", "routes"}, args...)...); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("routes %v: error %v, want one with %q", args, err, want)
		}
	}

	// What else the admin address answers, and to whom.
	for path, want := range map[string]string{
		"/debug/pprof/goroutine?debug=1": "goroutine profile", "/debug/pprof/profile?seconds=1": "", "/healthz": "ok", "/readyz": "ok",
	} {
		if code, body := get(t, "http://"+admin+path); code != http.StatusOK || !strings.Contains(body, want) {
			t.Errorf("%s: %d %.100s", path, code, body)
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
		t.Errorf("for a page of elsewhere: %s", resp.Status)
	}
	_, metrics := get(t, "http://"+admin+"/metrics")
	for _, want := range []string{
		`wanfed_gateway_hello_seconds_bucket\{listener="listen",route="exact",le="0\.0005"\} 0`,
		`wanfed_gateway_dial_seconds_bucket\{listener="listen",route="wildcard",le="\+Inf"\} 0`,
		`wanfed_gateway_stopping 0`, `wanfed_gateway_max_conns \d+`, `wanfed_gateway_max_files \S+`, `wanfed_gateway_sources\{listener="listen"\} 0`,
		`wanfed_gateway_access_log_dropped_total 0`,
	} {
		if !regexp.MustCompile(`(?m)^` + want + `$`).MatchString(metrics) {
			t.Errorf("/metrics lacks %s", want)
		}
	}
	gw.stop()
}

// TestGatewayRoutesOpen has a connection open to one of two addresses.
func TestGatewayRoutesOpen(t *testing.T) {
	up, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer up.Close()
	routes := filepath.Join(t.TempDir(), "routes.hcl")
	write(t, routes, `
route "a.example" { to = ["`+up.Addr().String()+`"] }
route "b.example" { to = ["127.0.0.1:1", "`+up.Addr().String()+`"] }
`)
	gw := startCommand(t, "gateway", "--listen", "127.0.0.1:0", "--routes", routes, "--admin-addr", "127.0.0.1:0")
	admin := gw.stderr.wait(t, `time=\S+ level=INFO msg="admin address" addr=http://(\S+)`)[1]
	open := func() string {
		t.Helper()
		got, _, err := call(t, "gateway", "routes", "--admin-addr", admin)
		if err != nil {
			t.Fatal(err)
		}
		return strings.Join(regexp.MustCompile(`  \d(, \d)*  `).FindAllString(got, -1), "")
	}
	c, err := net.Dial("tcp", regexp.MustCompile(`listening on (\S+),`).FindStringSubmatch(gw.line)[1])
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
	if _, err := u.Read(make([]byte, 1)); err != nil { // now it is routed
		t.Fatal(err)
	}
	if got := open(); got != "  1    0, 1  " {
		t.Errorf("open: %q", got)
	}
	u.Close()
	c.Close()
	for until := time.Now().Add(10 * time.Second); open() != "  0    0, 0  "; time.Sleep(20 * time.Millisecond) {
		if time.Now().After(until) {
			t.Fatalf("open after the end: %q", open())
		}
	}
	gw.stop()
}
