// SPDX-License-Identifier: MPL-2.0

package libmetrics

import (
	"testing"

	metrics "github.com/hashicorp/go-metrics"
	metricsprom "github.com/hashicorp/go-metrics/prometheus"
	"github.com/prometheus/client_golang/prometheus"
)

func BenchmarkCount(b *testing.B) {
	theirs, err := metricsprom.NewPrometheusSinkFrom(metricsprom.PrometheusOpts{Registerer: prometheus.NewRegistry()})
	if err != nil {
		b.Fatal(err)
	}
	ours, err := NewSink(prometheus.NewRegistry())
	if err != nil {
		b.Fatal(err)
	}
	for name, s := range map[string]metrics.MetricSink{"go-metrics": theirs, "ours": ours} {
		parts := []string{"wanfed", "raft", "wal", "log_appends"}
		b.Run(name+"/counter", func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				s.IncrCounterWithLabels(parts, 1, nil)
			}
		})
		b.Run(name+"/sample", func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				s.AddSampleWithLabels(parts, 1, nil)
			}
		})
	}
}
