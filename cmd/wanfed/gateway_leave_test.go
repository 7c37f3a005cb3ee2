// SPDX-License-Identifier: MPL-2.0

package main

import (
	"context"
	"net/http"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/wanfed/wanfed/api"
	"github.com/wanfed/wanfed/internal/subprocess"
	"github.com/wanfed/wanfed/tlsutil"
)

// TestGatewayLeaves runs a gateway of a datacenter with a server, has another process take over, then stops it: other
// datacenters see a healthy gateway as long as there is one, and none as soon as it stops, while it still takes connections.
func TestGatewayLeaves(t *testing.T) {
	dir := t.TempDir()
	pki, err := subprocess.NewPKI(filepath.Join(dir, "pki"), "")
	if err != nil {
		t.Fatal(err)
	}
	issue := func(role tlsutil.Role, node string) tlsutil.Files {
		t.Helper()
		f, err := pki.Issue(role, "dc1", node)
		if err != nil {
			t.Fatal(err)
		}
		return f
	}
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	srv, err := subprocess.StartServer(ctx, subprocess.ServerConfig{
		Program: []string{linkWanfed(t)}, Dir: filepath.Join(dir, "srv1"), DC: "dc1", Node: "srv1",
		TLS: issue(tlsutil.RoleServer, "srv1"), Args: []string{"--primary-datacenter", "dc1"},
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(srv.Kill)
	f := issue(tlsutil.RoleGateway, "gw1")
	g := startGatewayProc(t, "--dc", "dc1", "--node", "gw1", "--data-dir", filepath.Join(dir, "gw1"),
		"--ca-file", f.CA, "--cert-file", f.Cert, "--key-file", f.Key, "--server", srv.Addr,
		"--lan", "127.0.0.1:0", "--wan", "127.0.0.1:0", "--shutdown-delay", "1m", "--hot-restart-drain-time", "100ms")
	client, err := api.NewClient(api.ClientConfig{Addr: srv.HTTP})
	if err != nil {
		t.Fatal(err)
	}
	defer client.Close()
	until := func(what string, ok func(healthy int) bool) {
		t.Helper()
		for index := uint64(0); ; {
			state, meta, err := client.FederationState(ctx, "dc1", api.QueryOptions{Index: index, Wait: 5 * time.Second})
			healthy := 0
			for _, gw := range state.MeshGateways {
				if gw.Healthy() {
					healthy++
				}
			}
			if err == nil && ok(healthy) {
				return
			}
			if ctx.Err() != nil {
				t.Fatalf("%s: %d healthy gateways, %v", what, healthy, err)
			}
			index = meta.Index
		}
	}
	until("at the start", func(n int) bool { return n == 1 })

	if err := g.first.Signal(syscall.SIGUSR2); err != nil {
		t.Fatal(err)
	}
	pid, _ := strconv.Atoi(g.wait(t, `msg="new process took over, draining connections" .*pid=(\d+)`, 1)[1])
	<-g.ended
	until("after the handover", func(n int) bool { return n == 1 })
	if strings.Contains(g.read(t), "msg=deregistered") {
		t.Error("the old process deregistered the gateway that goes on")
	}
	if _, err := ask(g.addr, "srv1.server.dc1.wanfed"); err != nil && !strings.Contains(err.Error(), "tls: certificate required") {
		t.Errorf("through the new process: %v", err)
	}

	if err := syscall.Kill(pid, syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	until("after SIGTERM", func(n int) bool { return n == 0 })
	if code, body := get(t, g.admin+"/readyz"); code != http.StatusServiceUnavailable || !strings.Contains(body, "stopping") {
		t.Errorf("/readyz: %d %s", code, body)
	}
	if _, metrics := get(t, g.admin+"/metrics"); !strings.Contains(metrics, "wanfed_gateway_stopping 1\n") {
		t.Error("/metrics does not say that the gateway leaves")
	}
	if _, err := ask(g.addr, "srv1.server.dc1.wanfed"); err != nil && !strings.Contains(err.Error(), "tls: certificate required") {
		t.Errorf("in the grace: %v", err)
	}
	if err := syscall.Kill(pid, syscall.SIGTERM); err != nil { // the second ends it at once
		t.Fatal(err)
	}
	for {
		if _, err := http.Get(g.admin + "/healthz"); err != nil {
			break
		}
		if ctx.Err() != nil {
			t.Fatal("it does not end")
		}
	}
	http.DefaultClient.CloseIdleConnections()
}
