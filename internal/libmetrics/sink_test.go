// SPDX-License-Identifier: MPL-2.0

package libmetrics

import (
	"bytes"
	"sync"
	"testing"

	metrics "github.com/hashicorp/go-metrics"
	metricsprom "github.com/hashicorp/go-metrics/prometheus"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/common/expfmt"
)

// count is some of everything that libraries count.
func count(s metrics.MetricSink) {
	for range 3 {
		s.IncrCounter([]string{"raft", "apply"}, 2)
		s.IncrCounterWithLabels([]string{"raft", "wal", "log_appends"}, 1, nil)
		s.IncrCounterWithLabels([]string{"memberlist", "udp", "sent"}, 1, []metrics.Label{{Name: "network", Value: "lan"}})
		s.SetGauge([]string{"raft", "peers"}, 3)
		s.SetGaugeWithLabels([]string{"raft", "thread.main", "a-b/c"}, 7, nil)
		s.(metrics.PrecisionGaugeMetricSink).SetPrecisionGauge([]string{"raft", "precise"}, 1.5)
		s.AddSample([]string{"raft", "commitTime"}, 0.5)
		s.AddSampleWithLabels([]string{"raft", "rpc"}, 4, []metrics.Label{{Name: "peer", Value: "srv2"}})
		s.IncrCounter([]string{"raft", "a.b"}, 1)
		s.IncrCounter([]string{"raft", "a_b"}, 1)
	}
}

func text(t *testing.T, reg *prometheus.Registry) string {
	t.Helper()
	families, err := reg.Gather()
	if err != nil {
		t.Fatal(err)
	}
	var b bytes.Buffer
	for _, f := range families {
		if _, err := expfmt.MetricFamilyToText(&b, f); err != nil {
			t.Fatal(err)
		}
	}
	return b.String()
}

func TestSinkIsAsGoMetricsOwn(t *testing.T) {
	own, ours := prometheus.NewRegistry(), prometheus.NewRegistry()
	theirs, err := metricsprom.NewPrometheusSinkFrom(metricsprom.PrometheusOpts{Registerer: own})
	if err != nil {
		t.Fatal(err)
	}
	s, err := NewSink(ours)
	if err != nil {
		t.Fatal(err)
	}
	count(theirs)
	count(s)
	if got, want := text(t, ours), text(t, own); got != want {
		t.Errorf("metrics are\n%s\nnot\n%s", got, want)
	}
}

func TestSinkFromManyGoroutines(t *testing.T) {
	reg := prometheus.NewRegistry()
	s, err := NewSink(reg)
	if err != nil {
		t.Fatal(err)
	}
	var wg sync.WaitGroup
	for range 8 {
		wg.Go(func() {
			for range 100 {
				count(s)
			}
		})
	}
	wg.Wait()
	families, err := reg.Gather()
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range families {
		if f.GetName() == "raft_apply" && f.GetMetric()[0].GetCounter().GetValue() != 8*100*3*2 {
			t.Errorf("raft_apply is %v", f.GetMetric()[0])
		}
	}
}

func TestSinkAllocatesNothing(t *testing.T) {
	s, err := NewSink(prometheus.NewRegistry())
	if err != nil {
		t.Fatal(err)
	}
	parts := []string{"wanfed", "raft", "apply"}
	n := testing.AllocsPerRun(100, func() {
		s.IncrCounterWithLabels(parts, 1, nil)
		s.SetGaugeWithLabels(parts, 1, nil)
	})
	if n != 0 {
		t.Errorf("%v allocations", n)
	}
}
