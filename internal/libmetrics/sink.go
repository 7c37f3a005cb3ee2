// SPDX-License-Identifier: MPL-2.0

package libmetrics

import (
	"maps"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	metrics "github.com/hashicorp/go-metrics"
	metricsprom "github.com/hashicorp/go-metrics/prometheus"
	"github.com/prometheus/client_golang/prometheus"
)

// Sink is where go-metrics hands what is counted. It may be used from any goroutine.
type Sink struct {
	*metricsprom.PrometheusSink // for what has labels
	counters                    family[prometheus.Counter]
	gauges                      family[prometheus.Gauge]
	samples                     family[prometheus.Summary]
}

var (
	_ metrics.MetricSink               = (*Sink)(nil)
	_ metrics.PrecisionGaugeMetricSink = (*Sink)(nil)
	_ prometheus.Collector             = (*Sink)(nil)
)

// NewSink returns a sink whose metrics are registered.
func NewSink(reg prometheus.Registerer) (*Sink, error) {
	labelled, err := metricsprom.NewPrometheusSinkFrom(metricsprom.PrometheusOpts{Registerer: prometheus.NewRegistry()})
	if err != nil {
		return nil, err
	}
	s := &Sink{PrometheusSink: labelled}
	return s, reg.Register(s)
}

// Describe implements prometheus.Collector: unchecked, since names come as they are counted.
func (s *Sink) Describe(chan<- *prometheus.Desc) {}

// Collect implements prometheus.Collector.
func (s *Sink) Collect(c chan<- prometheus.Metric) {
	s.PrometheusSink.Collect(c)
	s.counters.collect(c)
	s.gauges.collect(c)
	s.samples.collect(c)
}

// IncrCounter implements metrics.MetricSink.
func (s *Sink) IncrCounter(parts []string, v float32) { s.IncrCounterWithLabels(parts, v, nil) }

// IncrCounterWithLabels implements metrics.MetricSink.
func (s *Sink) IncrCounterWithLabels(parts []string, v float32, labels []metrics.Label) {
	if len(labels) > 0 || v < 0 {
		s.PrometheusSink.IncrCounterWithLabels(parts, v, labels)
		return
	}
	s.counters.get(parts, func(name string) prometheus.Counter {
		return prometheus.NewCounter(prometheus.CounterOpts{Name: name, Help: name})
	}).Add(float64(v))
}

// SetGauge implements metrics.MetricSink.
func (s *Sink) SetGauge(parts []string, v float32) {
	s.SetPrecisionGaugeWithLabels(parts, float64(v), nil)
}

// SetGaugeWithLabels implements metrics.MetricSink.
func (s *Sink) SetGaugeWithLabels(parts []string, v float32, labels []metrics.Label) {
	s.SetPrecisionGaugeWithLabels(parts, float64(v), labels)
}

// SetPrecisionGauge implements metrics.PrecisionGaugeMetricSink.
func (s *Sink) SetPrecisionGauge(parts []string, v float64) {
	s.SetPrecisionGaugeWithLabels(parts, v, nil)
}

// SetPrecisionGaugeWithLabels implements metrics.PrecisionGaugeMetricSink.
func (s *Sink) SetPrecisionGaugeWithLabels(parts []string, v float64, labels []metrics.Label) {
	if len(labels) > 0 {
		s.PrometheusSink.SetPrecisionGaugeWithLabels(parts, v, labels)
		return
	}
	s.gauges.get(parts, func(name string) prometheus.Gauge {
		return prometheus.NewGauge(prometheus.GaugeOpts{Name: name, Help: name})
	}).Set(v)
}

// AddSample implements metrics.MetricSink.
func (s *Sink) AddSample(parts []string, v float32) { s.AddSampleWithLabels(parts, v, nil) }

// AddSampleWithLabels implements metrics.MetricSink.
func (s *Sink) AddSampleWithLabels(parts []string, v float32, labels []metrics.Label) {
	if len(labels) > 0 {
		s.PrometheusSink.AddSampleWithLabels(parts, v, labels)
		return
	}
	s.samples.get(parts, func(name string) prometheus.Summary {
		return prometheus.NewSummary(prometheus.SummaryOpts{
			Name: name, Help: name, MaxAge: 10 * time.Second,
			Objectives: map[float64]float64{0.5: 0.05, 0.9: 0.01, 0.99: 0.001},
		})
	}).Observe(float64(v))
}

// family is the metrics of one kind by their names' parts, joined with "_". The map is replaced, not changed.
type family[M prometheus.Metric] struct {
	mu  sync.Mutex // held to replace the map
	all atomic.Pointer[map[string]M]
}

func (f *family[M]) get(parts []string, make func(name string) M) M {
	var room [128]byte
	key := room[:0]
	for i, part := range parts {
		if i > 0 {
			key = append(key, '_')
		}
		key = append(key, part...)
	}
	if all := f.all.Load(); all != nil {
		if m, ok := (*all)[string(key)]; ok {
			return m
		}
	}
	return f.add(string(key), make)
}

// unfit is what Prometheus' names have not, as go-metrics replaces it.
var unfit = strings.NewReplacer(" ", "_", ".", "_", "=", "_", "-", "_", "/", "_")

func (f *family[M]) add(key string, make func(name string) M) M {
	f.mu.Lock()
	defer f.mu.Unlock()
	all := map[string]M{}
	if was := f.all.Load(); was != nil {
		if m, ok := (*was)[key]; ok {
			return m
		}
		maps.Copy(all, *was)
	}
	name := unfit.Replace(key)
	m, ok := all[name] // two keys may be one name
	if !ok {
		m = make(name)
		all[name] = m
	}
	all[key] = m
	f.all.Store(&all)
	return m
}

func (f *family[M]) collect(c chan<- prometheus.Metric) {
	all := f.all.Load()
	if all == nil {
		return
	}
	for key, m := range *all {
		if unfit.Replace(key) == key {
			c <- m
		}
	}
}
