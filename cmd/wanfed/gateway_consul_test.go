// SPDX-License-Identifier: MPL-2.0

package main

import (
	"bytes"
	"context"
	"crypto/tls"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/wanfed/wanfed/api"
	"github.com/wanfed/wanfed/gateway/proxycfg/consultest"
	"github.com/wanfed/wanfed/internal/subprocess"
	"github.com/wanfed/wanfed/internal/testutil"
	"github.com/wanfed/wanfed/tlsutil"
	"github.com/wanfed/wanfed/tlsutil/tlstest"
)

// consulServer starts a TLS server with the certificate of a Consul server. It
// sends its name to each client.
func consulServer(t testing.TB, ca *tlstest.CA, node, dc string) (addr string) {
	t.Helper()
	f := ca.Files(t, tlsutil.RoleServer, node, dc)
	cert, err := tls.LoadX509KeyPair(f.Cert, f.Key)
	if err != nil {
		t.Fatal(err)
	}
	return upstreamTLS(t, node+"."+dc, &tls.Config{Certificates: []tls.Certificate{cert}})
}

// startConsulGateway starts a gateway of a fake Consul agent.
func startConsulGateway(t testing.TB, agent *consultest.Agent, node string) (*runningCommand, subprocess.GatewayReady) {
	t.Helper()
	g := startCommand(t, "gateway", "--consul", agent.URL(), "--dc", agent.DC, "--node", node, "--data-dir",
		filepath.Join(t.TempDir(), "data"), "--lan", "127.0.0.1:0", "--wan", "127.0.0.1:0", "--admin-addr",
		"127.0.0.1:0", "--shutdown-delay", "0s", "--drain-time", "0s")
	ready, ok := subprocess.ParseGatewayReady(g.line)
	if !ok {
		t.Fatalf("first line = %q, want the addresses of the gateway", g.line)
	}
	return g, ready
}

// TestGatewayConsul runs two datacenters of a Consul WAN federation with a
// gateway each. The Consul agents are fakes (package consultest), because
// Consul's program cannot be part of the tests. The servers are TLS servers
// with the certificates of Consul servers.
func TestGatewayConsul(t *testing.T) {
	testutil.Cluster(t)
	ca := tlstest.NewCAFrom(t, tlsutil.CARequest{Domain: "consul"})
	agents := map[string]*consultest.Agent{}
	gateways := map[string]*runningCommand{}
	ready := map[string]subprocess.GatewayReady{}
	servers := map[string]map[string]string{}
	for _, dc := range []string{"dc1", "dc2"} {
		agents[dc] = consultest.NewAgent(t, dc)
		servers[dc] = map[string]string{"srv1": consulServer(t, ca, "srv1", dc), "srv2": consulServer(t, ca, "srv2", dc)}
		agents[dc].Set(servers[dc], nil)
		gateways[dc], ready[dc] = startConsulGateway(t, agents[dc], "gw-"+dc)
	}
	// registered returns the WAN address that the agent of dc has of its gateway.
	registered := func(dc string) string {
		body, _ := agents[dc].Registration("gw-" + dc)
		tagged, _ := body["TaggedAddresses"].(map[string]any)
		wan, _ := tagged["wan"].(map[string]any)
		return fmt.Sprintf("%v:%v", wan["Address"], wan["Port"])
	}
	for dc, other := range map[string]string{"dc1": "dc2", "dc2": "dc1"} { // federation states
		testutil.Eventually(t, processTimeout, func() bool { return registered(other) == ready[other].WAN },
			"registration of the gateway of %s", other)
		agents[dc].Set(servers[dc], map[string][]consultest.Gateway{
			other: {{Node: "gw-" + other, WAN: registered(other)}},
		})
	}
	for _, tt := range []struct{ listener, sni, want string }{
		{ready["dc1"].LAN, "srv1.server.dc2.consul", "srv1.dc2"},
		{ready["dc1"].LAN, "srv2.server.dc2.consul", "srv2.dc2"},
		{ready["dc1"].LAN, "server.dc2.consul", ".dc2"},
		{ready["dc1"].LAN, "srv1.server.dc1.consul", "srv1.dc1"},
		{ready["dc1"].WAN, "srv2.server.dc1.consul", "srv2.dc1"},
		{ready["dc2"].LAN, "server.dc1.consul", ".dc1"},
	} {
		testutil.Await(t, processTimeout, "connection to "+tt.sni, func(context.Context) error {
			got, err := readThrough(tt.listener, tt.sni)
			if err == nil && !strings.HasSuffix(got, tt.want) {
				err = fmt.Errorf("server = %q, want %q", got, tt.want)
			}
			return err
		})
	}
	if _, err := readThrough(ready["dc1"].WAN, "srv1.server.dc2.consul"); err == nil {
		t.Error("readThrough() from the WAN listener to another datacenter = nil, want an error")
	}

	admin := strings.TrimPrefix(gateways["dc1"].adminURL(t), "http://")
	out := runOutput(t, "gateway", "snapshot", "--admin-addr", admin, "--output", "json")
	var snaps []api.GatewaySnapshot
	if err := json.Unmarshal(out, &snaps); err != nil || len(snaps) != 1 {
		t.Fatalf("wanfed gateway snapshot = %s, %v; want one snapshot", out, err)
	}
	if s := snaps[0]; !s.Complete || len(s.Servers) != 2 || len(s.Datacenters) != 1 ||
		s.Datacenters[0].ServerName != "server.dc2.consul" || s.Parts[0].Origin != "consul "+agents["dc1"].URL() ||
		time.Since(s.Parts[0].Updated) > processTimeout {
		t.Errorf("wanfed gateway snapshot = %+v, want 2 servers and dc2, from consul", s)
	}
	out = runOutput(t, "gateway", "snapshot", "--admin-addr", admin, "--output", "wide")
	if want := "consul " + agents["dc1"].URL(); !strings.Contains(string(out), want) {
		t.Errorf("wanfed gateway snapshot = %s, want %s", out, want)
	}
	_, metrics := get(t, "http://"+admin+"/metrics")
	for _, want := range []string{`wanfed_gateway_snapshot_age_seconds{source="consul"}`,
		"wanfed_gateway_registered_age_seconds "} {
		if !strings.Contains(metrics, want) {
			t.Errorf("/metrics = %s\nwant %s", metrics, want)
		}
	}
	gateways["dc1"].stop()
	if body, _ := agents["dc1"].Registration("gw-dc1"); body != nil {
		t.Errorf("Registration() after the stop = %v, want none", body)
	}
}

// runOutput returns the output of a command that must succeed.
func runOutput(t testing.TB, args ...string) []byte {
	t.Helper()
	var out bytes.Buffer
	root := newRoot()
	root.SetArgs(args)
	root.SetOut(&out)
	root.SetErr(io.Discard)
	if err := root.ExecuteContext(t.Context()); err != nil {
		t.Fatalf("wanfed %s = %v, want nil", strings.Join(args, " "), err)
	}
	return out.Bytes()
}

func TestGatewayConsul_Settings(t *testing.T) {
	common := []string{"gateway", "--dc", "dc1", "--node", "gw1", "--data-dir", t.TempDir(), "--lan", "127.0.0.1:0",
		"--wan", "127.0.0.1:0"}
	for _, tt := range []struct {
		args []string
		env  map[string]string
		want string
	}{
		{args: []string{"--consul", "ftp://127.0.0.1:8500"}, want: "is neither http nor https"},
		{args: []string{"--consul", "http://127.0.0.1:8500", "--server", "10.0.0.1:8300"},
			want: "servers is a setting of a gateway of wanfed's servers"},
		{args: []string{"--consul", "env"}, env: map[string]string{"CONSUL_HTTP_ADDR": "unix://run/consul.sock"},
			want: "is neither http nor https"},
		{args: []string{"--consul", "http://127.0.0.1:8500"}, env: map[string]string{"CONSUL_HTTP_TOKEN_FILE": "/absent"},
			want: "CONSUL_HTTP_TOKEN_FILE: open /absent"},
		{args: []string{"--consul", "https://127.0.0.1:8501"}, env: map[string]string{"CONSUL_CACERT": "/absent"},
			want: "CONSUL_CACERT: open /absent"},
		{args: []string{"--consul", "https://127.0.0.1:8501"}, env: map[string]string{"CONSUL_CLIENT_CERT": "/absent"},
			want: "one is set without the other"},
	} {
		t.Run(tt.want, func(t *testing.T) {
			for key, value := range tt.env {
				t.Setenv(key, value)
			}
			root := newRoot()
			root.SetArgs(append(common, tt.args...))
			root.SetOut(io.Discard)
			root.SetErr(io.Discard)
			ctx, cancel := context.WithTimeout(t.Context(), processTimeout)
			defer cancel()
			err := root.ExecuteContext(ctx)
			if err == nil || errors.Is(err, context.DeadlineExceeded) || !strings.Contains(err.Error(), tt.want) {
				t.Errorf("wanfed gateway %q = %v, want %s", tt.args, err, tt.want)
			}
		})
	}
}
