// SPDX-License-Identifier: MPL-2.0

package test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"google.golang.org/grpc"

	"github.com/wanfed/wanfed/api"
	"github.com/wanfed/wanfed/api/pb"
	"github.com/wanfed/wanfed/federation"
	"github.com/wanfed/wanfed/internal/subprocess"
	"github.com/wanfed/wanfed/internal/testutil"
	"github.com/wanfed/wanfed/test/lab"
	"github.com/wanfed/wanfed/tlsutil"
)

// TestEnvoy checks the access log of an Envoy that is a gateway of dc2, and a
// configuration that another Envoy rejects. Tests of the federation with Envoys
// use overGateways.
func TestEnvoy(t *testing.T) {
	t.Parallel()
	l := lab.New(t)
	l.Envoys = "dc2"
	dc1, dc2 := l.Add(1, 1), l.Add(1, 2)
	dc1.Start()
	dc2.Servers[0].StartServer()
	gw := dc2.Gateways[0]
	gw.StartGateway("--access-log-percent", "100")
	awaitWhole(t, l, promptly, "start")
	t.Run("rejected configuration", func(t *testing.T) { rejectedConfiguration(t, l, dc1, dc2) })
	gw.Stop()
	wantAccessLog(t, gw.Process.LogPath())
}

// rejectedConfiguration starts an Envoy as the second gateway of dc2, and
// registers it three times: with its address, with one that Envoy cannot bind,
// and with another one that it can.
func rejectedConfiguration(t *testing.T, l *lab.Lab, dc1, dc2 *lab.Datacenter) {
	server, gw := dc2.Servers[0], dc2.Gateways[1]
	reached := func(what, wan string) {
		t.Helper()
		testutil.Await(t, 10*time.Second, "connections through the Envoy with "+what, func(context.Context) error {
			return errors.Join(tryTLS(t, l, server.NS, gw.LANAddr(), tlsutil.ServerName("", "dc1", "wanfed")),
				tryTLS(t, l, dc1.Gateways[0].NS, wan, tlsutil.ServerName("", "dc2", "wanfed")))
		})
	}
	first := gw.WANAddr()
	unregister := registerGateway(t, l, gw, first)
	bootstrap, err := gw.CLI("envoy", "bootstrap", "--dc", "dc2", "--node", gw.Name, "--data-dir", t.TempDir(),
		"--ca-file", gw.TLS.CA, "--cert-file", gw.TLS.Cert, "--key-file", gw.TLS.Key, "--server", server.ServerAddr(),
		"--lan", gw.LANAddr(), "--wan", first)
	if err != nil {
		t.Fatalf("wanfed envoy bootstrap = %v, want nil; output:\n%s", err, bootstrap)
	}
	path := filepath.Join(t.TempDir(), "envoy.json")
	if err := os.WriteFile(path, []byte(bootstrap), 0o600); err != nil {
		t.Fatal(err)
	}
	envoy := exec.Command("ip", "netns", "exec", gw.NS, testutil.Envoy(t), "-c", path, "--disable-hot-restart",
		"--concurrency", "1")
	if err := envoy.Start(); err != nil {
		t.Fatal(err)
	}
	defer func() { _ = envoy.Process.Kill(); _ = envoy.Wait() }()
	awaitEnvoy(t, server, gw, "ok", "version 1.")
	reached("the first configuration", first)

	unregister()
	unregister = registerGateway(t, l, gw, "198.18.99.99:8443")
	awaitEnvoy(t, server, gw, "rejected", "cannot bind '198.18.99.99:8443'")
	out, err := server.CLI("status")
	if text := squeeze(out); err != nil || !strings.Contains(text, "rejected") || !strings.Contains(text, "cannot bind") {
		t.Errorf("wanfed status = %v, want nil and the rejection; output:\n%s", err, out)
	}
	out, err = server.CLI("gateway", "snapshot", gw.Name, "--output", "json")
	if err != nil || !strings.Contains(out, `"complete": true`) || !strings.Contains(out, "cannot bind") {
		t.Errorf("wanfed gateway snapshot = %v, want nil and a complete snapshot with a rejection; output:\n%s", err, out)
	}
	reached("a rejected configuration", first)

	unregister()
	l.Net.Address(gw.NS, "wan", "198.18.2.77/16")
	unregister = registerGateway(t, l, gw, "198.18.2.77:8443")
	defer unregister()
	awaitEnvoy(t, server, gw, "ok", "version 1.")
	reached("the corrected configuration", "198.18.2.77:8443")
	var all []api.GatewaySnapshot
	if err := server.Get(t.Context(), api.GatewaySnapshotsPath, &all); err != nil {
		t.Fatal(err)
	}
	i := slices.IndexFunc(all, func(s api.GatewaySnapshot) bool { return s.Gateway == gw.Name && len(s.Envoys) == 1 })
	if i < 0 {
		t.Fatalf("gateway snapshots = %+v, want one of %s with one Envoy", all, gw.Name)
	}
	for _, typ := range all[i].Envoys[0].Types {
		if typ.Rejected != "" || typ.Accepted == 0 {
			t.Errorf("type of the Envoy = %+v, want accepted", typ)
		}
	}
}

// registerGateway registers a gateway with a WAN address, in place of its
// process.
func registerGateway(t *testing.T, l *lab.Lab, gw *lab.Node, wan string) (unregister func()) {
	t.Helper()
	dc, server := gw.DC().Name, lab.One(gw.DC())
	c := pb.NewGatewayServiceClient(connect(t, l, tlsutil.RoleGateway, dc, gw.Name, server.NS, server.ServerAddr(),
		tlsutil.ServerName("", dc, "wanfed")))
	if _, err := c.Register(t.Context(), &pb.RegisterGatewayRequest{Lan: gw.LANAddr(), Wan: wan}); err != nil {
		t.Fatalf("Register() with %s = %v, want nil", wan, err)
	}
	return func() {
		t.Helper()
		if _, err := c.Deregister(t.Context(), &pb.DeregisterGatewayRequest{Lan: gw.LANAddr(), Wan: wan}); err != nil {
			t.Errorf("Deregister() with %s = %v, want nil", wan, err)
		}
	}
}

// awaitEnvoy waits until the status of a server has the state of an Envoy, with
// detail in its text.
func awaitEnvoy(t *testing.T, server, gw *lab.Node, state, detail string) {
	t.Helper()
	testutil.Await(t, 10*time.Second, "Envoy "+state, func(ctx context.Context) error {
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
	})
}

// tryTLS makes a connection to a server from inside a namespace, and closes it.
func tryTLS(t *testing.T, l *lab.Lab, ns, addr, sni string) error {
	t.Helper()
	files, err := l.PKI.Issue(tlsutil.RoleOperator, "dc1", "operator")
	if err != nil {
		t.Fatal(err)
	}
	id, err := tlsutil.Load(files, "wanfed", quiet)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), pollTimeout)
	defer cancel()
	raw, err := lab.DialIn(ns)(ctx, "tcp", addr)
	if err != nil {
		return err
	}
	c, err := handshake(ctx, raw, id.ClientConfig(sni, "h2"))
	if err != nil {
		return err
	}
	return c.Close()
}

// TestEnvoy_Stop stops an Envoy that has an open connection.
func TestEnvoy_Stop(t *testing.T) {
	t.Parallel()
	l := lab.New(t)
	l.Envoys = lab.AllEnvoys
	dc := l.Add(1, 1)
	server, gw := dc.Servers[0], dc.Gateways[0]
	server.StartServer()
	sni := tlsutil.ServerName("", "dc1", "wanfed")
	// use makes a call over a connection through the gateway.
	use := func(cc *grpc.ClientConn) error {
		ctx, cancel := context.WithTimeout(t.Context(), pollTimeout)
		defer cancel()
		_, err := pb.NewResourceServiceClient(cc).List(ctx, &pb.ListRequest{Type: federation.StateType})
		return err
	}
	start := func(args ...string) *grpc.ClientConn {
		t.Helper()
		gw.StartGateway(args...)
		cc := connect(t, l, tlsutil.RoleOperator, "dc1", "operator", server.NS, gw.LANAddr(), sni)
		if err := use(cc); err != nil {
			t.Fatalf("call through the Envoy = %v, want nil", err)
		}
		return cc
	}
	terminate := func() {
		t.Helper()
		if err := gw.Process.Signal(syscall.SIGTERM); err != nil {
			t.Fatal(err)
		}
	}
	// refused waits until the Envoy accepts no connection.
	refused := func() {
		t.Helper()
		testutil.Await(t, 10*time.Second, "no new connection", func(context.Context) error {
			if err := tryTLS(t, l, server.NS, gw.LANAddr(), sni); !errors.Is(err, syscall.ECONNREFUSED) {
				return fmt.Errorf("connection = %w, want it refused", err)
			}
			return nil
		})
	}
	ended := func(p *subprocess.Process, limit time.Duration) {
		t.Helper()
		select {
		case <-p.Done():
			if p.Err() != nil {
				t.Errorf("wanfed envoy run = %v, want nil", p.Err())
			}
		case <-time.After(limit):
			t.Fatalf("wanfed envoy run has not ended after %v", limit)
		}
	}

	// In the order of a stop: deregistered, no new connections, the open one.
	cc := start("--shutdown-delay", "2s", "--drain-time", "1m")
	terminate()
	testutil.Await(t, 2*time.Second, "gateway deregistered", func(ctx context.Context) error {
		_, ok, err := gatewayOf(ctx, server, "dc1", gw.Name)
		if ok {
			return errors.New("it is registered")
		}
		return err
	})
	if err := tryTLS(t, l, server.NS, gw.LANAddr(), sni); err != nil {
		t.Errorf("connection in the shutdown delay = %v, want nil", err)
	}
	refused()
	if err := use(cc); err != nil {
		t.Errorf("call over an open connection of a stopping Envoy = %v, want nil", err)
	}
	cc.Close()
	ended(gw.Process, 5*time.Second)

	// The drain time limits the open connection.
	cc = start("--shutdown-delay", "0s", "--drain-time", "1s")
	terminate()
	ended(gw.Process, 5*time.Second)
	if err := use(cc); err == nil {
		t.Error("call over a connection of an Envoy that has ended = nil, want an error")
	}
	cc.Close() // it would connect again

	// Another process takes over while the old one drains.
	cc = start("--shutdown-delay", "0s", "--drain-time", "1m")
	old := gw.Process
	terminate()
	refused()
	start("--admin-addr", "127.0.0.1:9902", "--drain-time", "1m").Close()
	if err := use(cc); err != nil {
		t.Errorf("call over an open connection of the old Envoy = %v, want nil", err)
	}
	cc.Close()
	ended(old, 5*time.Second)
	if _, ok, err := gatewayOf(t.Context(), server, "dc1", gw.Name); !ok || err != nil {
		t.Errorf("new process registered after the end of the old one: %v, %v; want true, nil", ok, err)
	}

	// A second signal ends both programs at once.
	cc = connect(t, l, tlsutil.RoleOperator, "dc1", "operator", server.NS, gw.LANAddr(), sni)
	if err := use(cc); err != nil {
		t.Fatal(err)
	}
	terminate()
	refused()
	terminate()
	select {
	case <-gw.Process.Done():
	case <-time.After(5 * time.Second):
		t.Fatal("wanfed envoy run has not ended 5s after the second signal")
	}
	testutil.Await(t, 5*time.Second, "end of Envoy", func(context.Context) error {
		if err := use(cc); err == nil {
			return errors.New("its connection is open")
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
