// SPDX-License-Identifier: MPL-2.0

package monitor_test

import (
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"

	"github.com/wanfed/wanfed/internal/monitor"
)

func TestRequests(t *testing.T) {
	registry := prometheus.NewRegistry()
	all := []*monitor.Requests{monitor.NewHTTPRequests(), monitor.NewCalls(), monitor.NewForwarded()}
	for _, r := range all {
		registry.MustRegister(r)
		r.Observe("a", "ok", time.Millisecond)
		r.Observe("a", "ok", 2*time.Millisecond)
		r.Count("b", "failed")
	}
	problems, err := testutil.GatherAndLint(registry)
	if err != nil || len(problems) > 0 {
		t.Errorf("GatherAndLint() = %v, %v, want no problem", problems, err)
	}
	families, err := registry.Gather()
	if err != nil || len(families) != 2*len(all) {
		t.Fatalf("Gather() = %d families, %v, want %d", len(families), err, 2*len(all))
	}
	for _, f := range families {
		var counted float64
		var timed uint64
		for _, m := range f.GetMetric() {
			counted, timed = counted+m.GetCounter().GetValue(), timed+m.GetHistogram().GetSampleCount()
		}
		if counted != 3 && timed != 2 {
			t.Errorf("%s = %v, want three requests, or the durations of two", f.GetName(), f)
		}
	}
	var none *monitor.Requests
	none.Observe("a", "ok", 0)
	none.Count("a", "ok")
}

func BenchmarkRequests_Observe(b *testing.B) {
	r := monitor.NewHTTPRequests()
	b.ReportAllocs()
	b.RunParallel(func(pb *testing.PB) {
		for pb.Next() {
			start := time.Now()
			r.Observe("GET /v1/kv/{key...}", "2xx", time.Since(start))
		}
	})
}
