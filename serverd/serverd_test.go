// SPDX-License-Identifier: MPL-2.0

package serverd

import (
	"io"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/hashicorp/go-metrics"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil/promlint"
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

func TestCollectMetrics_NamesOfLibraries(t *testing.T) {
	if err := collectMetrics(); err != nil {
		t.Fatal(err)
	}
	metrics.IncrCounter([]string{"raft", "apply"}, 1)
	metrics.SetGauge([]string{"raft", "leader", "oldestLogAge"}, 2500)
	metrics.SetGauge([]string{"raft", "leader", "dispatchNumLogs"}, 3)
	metrics.AddSample([]string{"raft", "commitTime"}, 4)
	metrics.AddSample([]string{"serf", "queue", "Intent"}, 5)
	metrics.AddSample([]string{"serf", "coordinate", "adjustment-ms"}, 6)
	for _, peer := range []string{"srv2", "srv3"} {
		metrics.AddSampleWithLabels([]string{"raft", "replication", "heartbeat"}, 7, []metrics.Label{{Name: "peer-id", Value: peer}})
	}
	families, err := prometheus.DefaultGatherer.Gather()
	if err != nil {
		t.Fatal(err)
	}
	got := map[string]float64{}
	for _, f := range families {
		m := f.GetMetric()[0]
		if strings.HasPrefix(f.GetName(), "wanfed_") && len(m.GetSummary().GetQuantile()) > 0 {
			t.Errorf("%s has quantiles, which need much memory", f.GetName())
		}
		for _, l := range m.GetLabel() {
			got[f.GetName()+" "+l.GetName()+" "+l.GetValue()] = float64(len(f.GetMetric()))
		}
		got[f.GetName()] = m.GetCounter().GetValue() + m.GetGauge().GetValue() + m.GetSummary().GetSampleSum()
	}
	for name, want := range map[string]float64{
		"wanfed_raft_apply_total":                   1,
		"wanfed_raft_leader_oldest_log_age_seconds": 2.5,
		"wanfed_raft_leader_dispatch_num_logs":      3,
		"wanfed_raft_commit_time_seconds":           0.004,
		"wanfed_serf_queue_intent":                  5,
		"wanfed_serf_coordinate_adjustment_seconds": 0.006,
		"wanfed_raft_replication_heartbeat_seconds": 0.007,

		"wanfed_raft_replication_heartbeat_seconds peer_id srv2": 2,
	} {
		if math.Abs(got[name]-want) > 1e-6 {
			t.Errorf("%s = %v, want %v", name, got[name], want)
		}
	}
	problems, err := promlint.NewWithMetricFamilies(families).Lint()
	if err != nil || len(problems) > 0 {
		t.Errorf("Lint() = %v, %v, want no problem", problems, err)
	}
}

// TestSink_Allocations checks that a sample of a known metric costs no allocation: the
// libraries send several per second, also at rest.
func TestSink_Allocations(t *testing.T) {
	s, key := newSink(&metrics.BlackholeSink{}), []string{"wanfed", "memberlist", "testAllocations"}
	s.AddSample(key, 1)
	if got := testing.AllocsPerRun(100, func() { s.AddSample(key, 1) }); got > 0 {
		t.Errorf("AddSample() of a known metric = %v allocations, want 0", got)
	}
	long := append(slices.Clone(key), "a", "b", "c", "d")
	if a, b := keyOf(long, none), keyOf(append(slices.Clone(long), "e"), none); a == b {
		t.Errorf("keyOf() of two names = %v, want two keys", a)
	}
}
