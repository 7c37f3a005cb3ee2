// SPDX-License-Identifier: MPL-2.0

package main

import (
	"context"
	"fmt"
	"net/http"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/wanfed/wanfed/api"
	"github.com/wanfed/wanfed/internal/subprocess"
	"github.com/wanfed/wanfed/internal/testutil"
	"github.com/wanfed/wanfed/tlsutil"
)

// awaitGateways waits until the federation state of dc1 has want healthy
// gateways.
func awaitGateways(t testing.TB, client *api.Client, want int) {
	t.Helper()
	index := uint64(0)
	what := fmt.Sprintf("%d healthy gateways", want)
	testutil.Await(t, 2*time.Minute, what, func(ctx context.Context) error {
		state, meta, err := client.FederationState(ctx, "dc1", api.QueryOptions{Index: index, Wait: 5 * time.Second})
		if err != nil {
			return err
		}
		index = meta.Index
		healthy := 0
		for _, gw := range state.MeshGateways {
			if gw.Healthy() {
				healthy++
			}
		}
		if healthy != want {
			return fmt.Errorf("healthy gateways = %d, want %d", healthy, want)
		}
		return nil
	})
}

// A gateway stays registered during a hot restart. A stopping gateway
// deregisters at once, and accepts connections for the shutdown delay.
func TestGateway_DeregistersAtStop(t *testing.T) {
	testutil.Cluster(t)
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
	srv := startServerProcess(t, filepath.Join(dir, "srv1"), "srv1", issue(tlsutil.RoleServer, "srv1"),
		subprocess.ServerConfig{Args: []string{"--primary-datacenter", "dc1"}})
	f := issue(tlsutil.RoleGateway, "gw1")
	g := startGatewayProcess(t, unchanged, "--dc", "dc1", "--node", "gw1", "--data-dir", filepath.Join(dir, "gw1"),
		"--ca-file", f.CA, "--cert-file", f.Cert, "--key-file", f.Key, "--server", srv.Addr,
		"--lan", "127.0.0.1:0", "--wan", "127.0.0.1:0", "--shutdown-delay", "1m", "--hot-restart-drain-time", "100ms")
	client, err := api.NewClient(api.ClientConfig{Addr: srv.HTTP})
	if err != nil {
		t.Fatal(err)
	}
	defer client.Close()
	// checkConnects connects to the server through the gateway. The gateway
	// works if the server refuses the connection: it has no certificate.
	checkConnects := func(when string) {
		t.Helper()
		_, err := readThrough(g.addr, "srv1.server.dc1.wanfed")
		if err != nil && !strings.Contains(err.Error(), "tls: certificate required") {
			t.Errorf("readThrough() %s = %v, want an error of the server: certificate required", when, err)
		}
	}
	awaitGateways(t, client, 1)

	g.signal(t, syscall.SIGUSR2)
	pid := g.awaitReplaced(t, 1)
	<-g.ended
	awaitGateways(t, client, 1)
	if strings.Contains(g.output(t), "msg=deregistered") {
		t.Errorf("log after the hot restart = %s\nwant no deregistration", g.output(t))
	}
	checkConnects("after the hot restart")

	if err := syscall.Kill(pid, syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	awaitGateways(t, client, 0)
	code, body := get(t, g.admin+"/readyz")
	if code != http.StatusServiceUnavailable || !strings.Contains(body, "stopping") {
		t.Errorf("/readyz = %d %s, want %d and stopping", code, body, http.StatusServiceUnavailable)
	}
	if _, metrics := get(t, g.admin+"/metrics"); !strings.Contains(metrics, "wanfed_gateway_stopping 1\n") {
		t.Errorf("/metrics = %s\nwant wanfed_gateway_stopping 1", metrics)
	}
	checkConnects("during the shutdown delay")
	if err := syscall.Kill(pid, syscall.SIGTERM); err != nil { // the second SIGTERM ends it at once
		t.Fatal(err)
	}
	testutil.Eventually(t, processTimeout, func() bool {
		resp, err := http.Get(g.admin + "/healthz")
		if err == nil {
			resp.Body.Close()
		}
		return err != nil
	}, "the end of the process after the second SIGTERM")
	http.DefaultClient.CloseIdleConnections()
}
