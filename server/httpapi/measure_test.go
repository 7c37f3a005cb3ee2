// SPDX-License-Identifier: MPL-2.0

package httpapi

import (
	"log/slog"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus/testutil"

	"github.com/wanfed/wanfed/internal/monitor"
)

// Requests are counted by the pattern of their route, never by their path.
// Those that may wait have no duration.
func TestMeasure(t *testing.T) {
	requests := monitor.NewHTTPRequests()
	h, err := New(Config{
		DC: "dc1", Policy: policyOf("dc1"), Cluster: newFakeCluster(), Logger: slog.New(slog.DiscardHandler),
		Requests: requests,
	})
	if err != nil {
		t.Fatal(err)
	}
	for _, target := range []string{
		"/v1/internal/federation-state/dc2", "/v1/internal/federation-state/dc3", "/v1/internal/federation-state/dc9",
		"/v1/status/leader?index=x", "/no/such/path1", "/no/such/path2",
	} {
		get(t.Context(), h, target)
	}
	const want = `
# HELP wanfed_http_requests_total HTTP requests, by route and class of the status, also for other datacenters.
# TYPE wanfed_http_requests_total counter
wanfed_http_requests_total{code="2xx",route="GET /v1/internal/federation-state/{dc}"} 1
wanfed_http_requests_total{code="4xx",route="/"} 2
wanfed_http_requests_total{code="4xx",route="GET /v1/internal/federation-state/{dc}"} 2
wanfed_http_requests_total{code="4xx",route="GET /v1/status/leader"} 1
`
	if err := testutil.CollectAndCompare(requests, strings.NewReader(want), "wanfed_http_requests_total"); err != nil {
		t.Error(err)
	}
	if n := testutil.CollectAndCount(requests, "wanfed_http_request_seconds"); n != 2 {
		t.Errorf("routes with durations = %d, want 2: the request with index is only counted", n)
	}
}

func BenchmarkHandler_StatusLeader(b *testing.B) {
	for name, requests := range map[string]*monitor.Requests{"measured": monitor.NewHTTPRequests(), "unmeasured": nil} {
		b.Run(name, func(b *testing.B) {
			h, err := New(Config{
				DC: "dc1", Policy: policyOf("dc1"), Cluster: newFakeCluster(), Logger: slog.New(slog.DiscardHandler),
				Requests: requests,
			})
			if err != nil {
				b.Fatal(err)
			}
			b.ReportAllocs()
			for b.Loop() {
				r := httptest.NewRequest("GET", "/v1/status/leader", nil)
				r.Host = "127.0.0.1:8500"
				h.ServeHTTP(httptest.NewRecorder(), r)
			}
		})
	}
}
