// SPDX-License-Identifier: MPL-2.0

package rules

import (
	"bytes"
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

const (
	dashboardFile = "contrib/grafana/wanfed.json"
	alertRules    = "contrib/prometheus/wanfed.rules.yml"
	alertTest     = "contrib/prometheus/wanfed.test.yml"
)

// panel is a panel of the dashboard.
type panel struct {
	title, unit string
	stat        bool // the last value of each series instead of a graph
	exprs       []string
	legend      string
}

// rows has the panels of the dashboard. The label dc of a target names its
// datacenter, so Prometheus renames the label dc of a metric to exported_dc.
var rows = []struct {
	title  string
	panels []panel
}{
	{"Federation", []panel{
		{title: "Datacenters that are reachable", stat: true, legend: "{{exported_dc}} from {{dc}}",
			exprs: []string{`min by (dc, exported_dc) (wanfed_datacenter_reachable{direction="outbound"})`}},
		{title: "Gateways that cannot be dialed", stat: true, legend: "{{gateway}} from {{from}}",
			exprs: []string{`max by (gateway, addr, from) (wanfed_gateway_unreachable)`}},
		{title: "Round-trip time of paths", unit: "s", legend: "{{dc}} to {{exported_dc}} by {{addr}}",
			exprs: []string{`min by (dc, exported_dc, addr) (wanfed_path_rtt_seconds > 0)`}},
		{title: "Age of replicas", unit: "s", legend: "{{dc}}", exprs: []string{`max by (dc) (wanfed_replication_lag_seconds)`}},
		{title: "Members", legend: "{{pool}} {{status}} in {{dc}}",
			exprs: []string{`max by (dc, pool, status) (wanfed_pool_members)`}},
		{title: "Probes that fail", unit: "ops", legend: "{{dc}} to {{exported_dc}}",
			exprs: []string{`sum by (dc, exported_dc) (rate(wanfed_probe_failures_total[5m]))`}},
	}},
	{"Servers", []panel{
		{title: "Leaders", stat: true, legend: "{{dc}}", exprs: []string{`sum by (dc) (wanfed_leader)`}},
		{title: "Certificates expire in", unit: "s", stat: true, legend: "{{instance}}",
			exprs: []string{`wanfed_certificate_expiry_timestamp_seconds - time()`}},
		{title: "Raft: time of a commit", unit: "s", legend: "{{instance}}",
			exprs: []string{`rate(wanfed_raft_commit_time_seconds_sum[5m]) / rate(wanfed_raft_commit_time_seconds_count[5m])`}},
		{title: "gRPC calls denied", unit: "ops", legend: "{{method}} {{role}}",
			exprs: []string{`sum by (method, role) (rate(wanfed_calls_refused_total[5m]))`}},
		{title: "Connections refused on the server port", unit: "ops", legend: "{{reason}}",
			exprs: []string{`sum by (reason) (rate(wanfed_port_refused_total[5m]))`}},
		{title: "Resident memory", unit: "bytes", legend: "{{instance}}", exprs: []string{`process_resident_memory_bytes`}},
	}},
	{"Requests", []panel{
		{title: "HTTP requests", unit: "reqps", legend: "{{instance}} {{code}}",
			exprs: []string{`sum by (instance, code) (rate(wanfed_http_requests_total[5m]))`}},
		{title: "Time to serve an HTTP request, 99 %", unit: "s", legend: "{{route}}",
			exprs: []string{`histogram_quantile(0.99, sum by (route, le) (rate(wanfed_http_request_seconds_bucket[5m])))`}},
		{title: "Requests to other datacenters", unit: "reqps", legend: "{{dc}} to {{exported_dc}} {{result}}",
			exprs: []string{`sum by (dc, exported_dc, result) (rate(wanfed_forwarded_requests_total[5m]))`}},
		{title: "Time to the response of another datacenter, 99 %", unit: "s", legend: "{{dc}} to {{exported_dc}}", exprs: []string{
			`histogram_quantile(0.99, sum by (dc, exported_dc, le) (rate(wanfed_forwarded_request_seconds_bucket[5m])))`}},
		{title: "gRPC calls", unit: "reqps", legend: "{{method}} {{code}}",
			exprs: []string{`sum by (method, code) (rate(wanfed_grpc_calls_total[5m]))`}},
		{title: "Time to serve a gRPC call, 99 %", unit: "s", legend: "{{method}}",
			exprs: []string{`histogram_quantile(0.99, sum by (method, le) (rate(wanfed_grpc_call_seconds_bucket[5m])))`}},
	}},
	{"Gateways", []panel{
		{title: "Open connections", legend: "{{instance}} {{listener}}", exprs: []string{`wanfed_gateway_active`}},
		{title: "Bytes forwarded", unit: "Bps", legend: "{{instance}} {{direction}}",
			exprs: []string{`sum by (instance, direction) (rate(wanfed_gateway_bytes_total[5m]))`}},
		{title: "Connections refused", unit: "ops", legend: "{{listener}} {{reason}}",
			exprs: []string{`sum by (listener, reason) (rate(wanfed_gateway_refused_total[5m]))`}},
		{title: "Time to the upstream connection, 99 %", unit: "s", legend: "{{instance}} {{route}}",
			exprs: []string{`histogram_quantile(0.99, sum by (instance, route, le) (rate(wanfed_gateway_dial_seconds_bucket[5m])))`}},
		{title: "Age of routes", unit: "s", legend: "{{instance}} {{source}}", exprs: []string{`wanfed_gateway_snapshot_age_seconds`}},
		{title: "Failed dials", unit: "ops", legend: "{{instance}} {{listener}}",
			exprs: []string{`rate(wanfed_gateway_dial_failures_total[5m])`}},
	}},
}

type object = map[string]any

// dashboard returns the JSON of the dashboard in Grafana's format.
func dashboard(t testing.TB) string {
	t.Helper()
	source := object{"type": "prometheus", "uid": "${source}"}
	var panels []object
	y := 0
	for _, row := range rows {
		panels = append(panels, object{"id": len(panels) + 1, "type": "row", "title": row.title, "collapsed": false,
			"gridPos": object{"h": 1, "w": 24, "x": 0, "y": y}})
		y++
		for i, p := range row.panels {
			kind := "timeseries"
			if p.stat {
				kind = "stat"
			}
			var targets []object
			for j, expr := range p.exprs {
				targets = append(targets, object{"refId": string(rune('A' + j)), "datasource": source, "expr": expr,
					"legendFormat": p.legend, "instant": p.stat})
			}
			panels = append(panels, object{
				"id": len(panels) + 1, "type": kind, "title": p.title, "datasource": source, "targets": targets,
				"fieldConfig": object{"defaults": object{"unit": p.unit}, "overrides": []any{}},
				"gridPos":     object{"h": 8, "w": 8, "x": i % 3 * 8, "y": y + i/3*8},
			})
		}
		y += (len(row.panels) + 2) / 3 * 8
	}
	b, err := json.MarshalIndent(object{
		"title": "wanfed", "uid": "wanfed", "schemaVersion": 39, "editable": true, "refresh": "30s", "tags": []string{"wanfed"},
		"time": object{"from": "now-1h", "to": "now"}, "panels": panels,
		"templating": object{"list": []object{{"name": "source", "type": "datasource", "query": "prometheus", "label": "Source"}}},
	}, "", "  ")
	if err != nil {
		t.Fatal(err)
	}
	return string(b) + "\n"
}

func TestDashboard_IsCurrent(t *testing.T) {
	path := filepath.Join(root, dashboardFile)
	want := dashboard(t)
	if *update {
		if err := os.WriteFile(path, []byte(want), 0o644); err != nil {
			t.Fatal(err)
		}
		return
	}
	if got, err := os.ReadFile(path); err != nil || string(got) != want {
		t.Errorf("%s is not what the code generates (%v); run make gen", dashboardFile, err)
	}
}

// TestMonitoring_MetricsExist checks that the programs have each metric of the
// alert rules and of the dashboard.
func TestMonitoring_MetricsExist(t *testing.T) {
	known := metricsPage(t)
	for _, file := range []string{dashboardFile, alertRules, alertTest} {
		text, err := os.ReadFile(filepath.Join(root, file))
		if err != nil {
			t.Fatal(err)
		}
		names := regexp.MustCompile(`\bwanfed_[a-z_]+[a-z]\b`).FindAllString(string(text), -1)
		if len(names) == 0 {
			t.Errorf("%s names no metric", file)
		}
		for _, name := range names {
			if libraryMetric(name) {
				continue
			}
			if base := strings.TrimSuffix(name, "_bucket"); !strings.Contains(known, "`"+base+"`") &&
				!strings.Contains(known, "`"+base+"{") {
				t.Errorf("%s has metric %s, which no program has", file, name)
			}
		}
	}
}

func libraryMetric(name string) bool {
	return regexp.MustCompile(`^wanfed_(raft|serf|memberlist)_`).MatchString(name)
}

// TestAlerts runs the tests of the alert rules.
func TestAlerts(t *testing.T) {
	promtool, err := exec.LookPath("promtool")
	if err != nil {
		t.Skip("promtool is missing")
	}
	for _, args := range [][]string{{"check", "rules", filepath.Base(alertRules)}, {"test", "rules", filepath.Base(alertTest)}} {
		cmd := exec.Command(promtool, args...)
		cmd.Dir = filepath.Join(root, filepath.Dir(alertRules))
		if out, err := cmd.CombinedOutput(); err != nil || !bytes.Contains(out, []byte("SUCCESS")) {
			t.Errorf("promtool %s = %v, want SUCCESS:\n%s", strings.Join(args, " "), err, out)
		}
	}
}
