// SPDX-License-Identifier: MPL-2.0

package test

import (
	"fmt"
	"net/http"
	"os/exec"
	"strings"
	"testing"
)

// TestRequestMetrics counts requests by route and datacenter at processes. promtool
// has no findings about the metrics of a server and of a gateway.
func TestRequestMetrics(t *testing.T) {
	l := newLoopback(t)
	dc1 := l.start("dc1", "dc1")
	dc2 := l.start("dc2", "dc1", dc1.gateway.WAN)
	l.federated(dc1, dc2)
	const n = 5
	for i := range n {
		for _, path := range []string{"/v1/catalog/datacenters?dc=dc2", fmt.Sprintf("/v1/kv/any/%d", i), "/v1/kv/a?dc=dc9"} {
			resp, err := http.Get(dc1.server.HTTP + path)
			if err != nil {
				t.Fatal(err)
			}
			resp.Body.Close()
		}
	}
	for series, want := range map[string]float64{
		`wanfed_forwarded_requests_total{dc="dc2",result="ok"}`:                           n,
		`wanfed_forwarded_request_seconds_count{dc="dc2"}`:                                n,
		`wanfed_http_requests_total{code="4xx",route="GET /v1/kv/{key...}"}`:              n,
		`wanfed_http_requests_total{code="5xx",route="GET /v1/kv/{key...}"}`:              n, // dc9 is unknown
		`wanfed_http_request_seconds_count{route="GET /v1/kv/{key...}"}`:                  2 * n,
		`wanfed_http_requests_total{code="2xx",route="GET /v1/catalog/datacenters"}`:      n,
		`wanfed_forwarded_requests_total{dc="dc9",result="failed"}`:                       0,
		`wanfed_http_request_seconds_count{route="GET /v1/catalog/datacenters"}`:          n,
		`wanfed_http_request_seconds_bucket{route="GET /v1/catalog/datacenters",le="10"}`: n,
	} {
		if got := metric(t, dc1.server.HTTP, series); got != want {
			t.Errorf("%s = %v, want %v", series, got, want)
		}
	}
	promtool, err := exec.LookPath("promtool")
	if err != nil {
		t.Skip("promtool is missing")
	}
	for _, base := range []string{dc1.server.HTTP, dc1.admin} {
		cmd := exec.Command(promtool, "check", "metrics")
		cmd.Stdin = strings.NewReader(metricLines(t, base))
		if out, err := cmd.CombinedOutput(); err != nil || len(out) > 0 {
			t.Errorf("promtool check metrics = %v, %s, want no finding", err, out)
		}
	}
}
