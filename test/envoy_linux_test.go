// SPDX-License-Identifier: MPL-2.0

package test

import (
	"context"
	"encoding/json"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/wanfed/wanfed/api"
	"github.com/wanfed/wanfed/internal/testutil"
	"github.com/wanfed/wanfed/test/lab"
)

// TestEnvoy federates two datacenters with the same subnet. Envoy is the
// gateway of dc2, then of both datacenters. Then the gateway of dc2 gets another
// address.
func TestEnvoy(t *testing.T) {
	testutil.Cluster(t)
	envoy := testutil.Envoy(t)
	l := lab.New(t)
	capture := lab.StartCapture(t, l.WAN)
	dc1, dc2 := l.Add(1, 1), l.Add(1, 1)
	gw1, gw2 := dc1.Gateways[0], dc2.Gateways[0]
	noRoute(t, dc2.Servers[0].NS, net.JoinHostPort(gw1.WAN, strconv.Itoa(lab.WANPort)))
	wantFederated := func(state string, since time.Time) {
		t.Helper()
		testutil.Await(t, 30*time.Second, "federation with "+state, func(ctx context.Context) error {
			for _, s := range slices.Concat(dc1.Servers, dc2.Servers) {
				if err := federated(ctx, s, 2, "dc1", "dc2"); err != nil {
					return err
				}
			}
			return nil
		})
		t.Logf("federated with %s after %v", state, time.Since(since))
		sameResponseBothWays(t, dc1.Servers[0], dc2.Servers[0])
	}

	began := time.Now()
	dc1.Start()
	dc2.Servers[0].StartServer()
	gw2.StartEnvoy(envoy, "--access-log-percent", "100")
	wantFederated("Envoy in dc2", began)

	wantRejection(t, dc2, envoy)

	gw1.Stop()
	began = time.Now()
	gw1.StartEnvoy(envoy)
	wantFederated("Envoy in both", began)

	gw2.Stop()
	wantAccessLog(t, gw2.Process.LogPath())
	gw2.ReAddress("198.18.2.77")
	began = time.Now()
	gw2.StartEnvoy(envoy)
	wantFederated("Envoy in dc2 at another address", began)

	for _, n := range slices.Concat(dc1.Nodes(), dc2.Nodes()) {
		n.Stop()
	}
	if report := capture.Check(t, lab.WANPort); report.Records == 0 {
		t.Error("capture of the WAN has 0 TLS records, want some")
	}
}

// wantRejection starts a second Envoy as the gateway of dc, which cannot bind its
// WAN listener. It checks that the server reports the rejection, and that the
// first Envoy has no fault.
func wantRejection(t *testing.T, dc *lab.Datacenter, envoy string) {
	t.Helper()
	server, gw := dc.Servers[0], dc.Gateways[0]
	component := func(ctx context.Context, state, detail string) error {
		var s api.Status
		if err := server.Get(ctx, api.StatusPath, &s); err != nil {
			return err
		}
		for _, c := range s.Components {
			if c.Name == "envoy "+gw.Name && c.State == state && strings.Contains(c.Detail, detail) {
				return nil
			}
		}
		return fmt.Errorf("components = %v, want envoy %s with state %s and %q", s.Components, gw.Name, state, detail)
	}
	testutil.Await(t, 10*time.Second, "an Envoy without a fault", func(ctx context.Context) error {
		return component(ctx, "ok", "version 1.")
	})
	bootstrap, err := gw.CLI("envoy", "bootstrap", "--dc", dc.Name, "--node", gw.Name, "--data-dir", t.TempDir(),
		"--ca-file", gw.TLS.CA, "--cert-file", gw.TLS.Cert, "--key-file", gw.TLS.Key, "--server", server.ServerAddr(),
		"--lan", gw.LANAddr(), "--wan", gw.WANAddr(), "--wan-bind", "198.18.99.99:8443", "--admin-addr", "127.0.0.1:9902")
	if err != nil {
		t.Fatalf("wanfed envoy bootstrap = %v, want nil; output:\n%s", err, bootstrap)
	}
	path := filepath.Join(t.TempDir(), "envoy.json")
	if err := os.WriteFile(path, []byte(bootstrap), 0o600); err != nil {
		t.Fatal(err)
	}
	second := exec.Command("ip", "netns", "exec", gw.NS, envoy, "-c", path, "--disable-hot-restart", "--concurrency", "1")
	if err := second.Start(); err != nil {
		t.Fatal(err)
	}
	stop := sync.OnceFunc(func() { _ = second.Process.Kill(); _ = second.Wait() })
	defer stop()
	testutil.Await(t, 10*time.Second, "the rejection in the status", func(ctx context.Context) error {
		return component(ctx, "rejected", "cannot bind")
	})
	out, err := server.CLI("gateway", "snapshot", gw.Name, "--output", "json")
	if err != nil || !strings.Contains(out, `"complete": true`) || !strings.Contains(out, "cannot bind") {
		t.Errorf("wanfed gateway snapshot = %v, want nil and a complete snapshot with a rejection; output:\n%s", err, out)
	}
	stop()
	testutil.Await(t, 10*time.Second, "one Envoy without a fault", func(ctx context.Context) error {
		var all []api.GatewaySnapshot
		if err := server.Get(ctx, api.GatewaySnapshotsPath, &all); err != nil {
			return err
		}
		if len(all) != 1 || len(all[0].Envoys) != 1 {
			return fmt.Errorf("gateway snapshots = %+v, want one with one Envoy", all)
		}
		for _, typ := range all[0].Envoys[0].Types {
			if typ.Rejected != "" || typ.Accepted == 0 {
				return fmt.Errorf("type of the Envoy = %+v, want accepted", typ)
			}
		}
		return nil
	})
}

// wantAccessLog checks that the log of an Envoy has a line for a connection to
// each datacenter.
func wantAccessLog(t *testing.T, path string) {
	t.Helper()
	b, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	upstreams := map[string]bool{}
	for line := range strings.Lines(string(b)) {
		var l struct {
			SNI, Upstream, Remote, End string
			Up                         int `json:"bytes_up"`
		}
		if json.Unmarshal([]byte(line), &l) == nil && l.Up > 0 && l.Remote != "" {
			_, dc, _ := strings.Cut(l.SNI, "server.")
			upstreams[dc+" "+l.Upstream] = true
		}
	}
	for _, want := range []string{"dc1.wanfed 198.18.1.1:8443", "dc2.wanfed 10.10.0.11:8300"} {
		if !upstreams[want] {
			t.Errorf("access log has connections %v, want one to %s", upstreams, want)
		}
	}
}
