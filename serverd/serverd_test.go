// SPDX-License-Identifier: MPL-2.0

package serverd

import (
	"io"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"github.com/hashicorp/go-metrics"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/spf13/pflag"

	"github.com/wanfed/wanfed/internal/settings"
)

// load returns the settings of "wanfed server" with args.
func load(t testing.TB, args ...string) (Settings, error) {
	t.Helper()
	s := DefaultSettings()
	flags := pflag.NewFlagSet("server", pflag.ContinueOnError)
	settings.AddFlags(flags, &s)
	if err := flags.Parse(args); err != nil {
		t.Fatal(err)
	}
	err := settings.Load(flags, io.Discard, &s)
	return s, err
}

func TestSettings_Sources(t *testing.T) {
	path := filepath.Join(t.TempDir(), "server.hcl")
	err := os.WriteFile(path, []byte(`dc = "dc2"
node = "file"
port = 9300
primary_datacenter = "dc1"
primary_gateways = ["a:1", "b:2"]
mesh_gateway_mode = "auto"
bootstrap_expect = 3
`), 0o600)
	if err != nil {
		t.Fatal(err)
	}
	t.Setenv("WANFED_NODE", "env")
	t.Setenv("WANFED_PORT", "9301")
	s, err := load(t, "--config-file", path, "--port", "-1", "--retry-join", "c:3", "--retry-join", "d:4")
	if err != nil {
		t.Fatal(err)
	}
	c := s.config()
	if c.DC != "dc2" || c.Node != "env" || c.Port != -1 || c.PrimaryDC != "dc1" || c.BootstrapExpect != 3 ||
		c.HTTPAddr != "127.0.0.1:8500" || c.Bind != "0.0.0.0" || c.MeshGatewayMode != "auto" || c.Domain != "wanfed" {
		t.Errorf("config = %+v, want the values of the flags, the environment and the file", c)
	}
	if !slices.Equal(c.PrimaryGateways, []string{"a:1", "b:2"}) || !slices.Equal(c.RetryJoin, []string{"c:3", "d:4"}) {
		t.Errorf("lists = %q, %q, want [a:1 b:2], [c:3 d:4]", c.PrimaryGateways, c.RetryJoin)
	}
	s, err = load(t, "--config-file", path, "--primary-gateway", "e:5")
	if err != nil || !slices.Equal(s.PrimaryGateways, []string{"e:5"}) || s.config().Port != 9301 {
		t.Errorf("settings = %+v, %v, want primary gateway e:5 and port 9301", s, err)
	}
}

func TestCollectMetrics_LibraryCounter(t *testing.T) {
	if err := collectMetrics(); err != nil {
		t.Fatal(err)
	}
	metrics.IncrCounter([]string{"raft", "apply"}, 1)
	families, err := prometheus.DefaultGatherer.Gather()
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range families {
		if f.GetName() == "wanfed_raft_apply" {
			return
		}
	}
	t.Errorf("Gather() has %d metrics, want wanfed_raft_apply among them", len(families))
}
