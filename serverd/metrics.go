// SPDX-License-Identifier: MPL-2.0

package serverd

import (
	"fmt"
	"slices"
	"strings"
	"sync"
	"unicode"

	"github.com/hashicorp/go-metrics"
	sinks "github.com/hashicorp/go-metrics/prometheus"
	"github.com/prometheus/client_golang/prometheus"
)

// collectMetrics adds the metrics of Raft, serf and memberlist, which have one
// sink per process, to the metrics of this process.
func collectMetrics() error {
	to, err := sinks.NewPrometheusSinkFrom(sinks.PrometheusOpts{})
	if err != nil {
		return fmt.Errorf("collect metrics of libraries: %w", err)
	}
	cfg := metrics.DefaultConfig("wanfed")
	cfg.EnableHostname = false       // Prometheus adds the instance
	cfg.EnableRuntimeMetrics = false // Prometheus has a collector for the Go runtime
	if _, err := metrics.NewGlobal(cfg, newSink(to)); err != nil {
		return fmt.Errorf("collect metrics of libraries: %w", err)
	}
	return nil
}

// sink passes the metrics of libraries on with names and units of Prometheus:
// lower case with underscores, _total after counters, _seconds after times.
//
// Samples become summaries of their sum and number. The sink of go-metrics also
// computes quantiles of the last ten seconds, which need 68 KB per summary.
//
// The libraries count many events per second, also at rest. A known metric without
// labels therefore costs one lookup and no allocation.
type sink struct {
	to        metrics.MetricSink // for counters and gauges
	summaries sync.Map           // of string, the name and labels, to prometheus.Summary

	mu      sync.RWMutex
	names   map[metricKey][]string
	samples map[metricKey]sample // without labels
}

// metricKey is the name of a metric in a library, and its unit.
type metricKey struct {
	parts [6]string // the last one has all further parts
	unit  unit
}

func keyOf(key []string, u unit) (k metricKey) {
	k.unit = u
	if n := len(k.parts) - 1; copy(k.parts[:], key) > n {
		k.parts[n] = strings.Join(key[n:], "\x00")
	}
	return k
}

// sample is where the samples of a metric go, and the factor of their values.
type sample struct {
	to     prometheus.Summary
	factor float32
}

func newSink(to metrics.MetricSink) *sink {
	return &sink{to: to, names: map[metricKey][]string{}, samples: map[metricKey]sample{}}
}

// unit is the last word of the name of a metric.
type unit string

const (
	total   unit = "total" // of a counter
	none    unit = ""
	seconds unit = "seconds" // the libraries count milliseconds
)

// In the libraries, samples are milliseconds, except for those that have a part
// in numbers. Gauges are numbers, except for those that end in a part in times.
var (
	numbers = []string{"queue", "msgs", "size", "applyBatchNum", "saturation"}
	times   = []string{"oldestLogAge", "lastRestoreDuration"}
)

// name returns the name of a metric with its unit, and the factor of its values.
func (s *sink) name(key []string, u unit) ([]string, float32) {
	factor := float32(1)
	if u == seconds {
		factor = 1e-3
	}
	k := keyOf(key, u)
	s.mu.RLock()
	known := s.names[k]
	s.mu.RUnlock()
	if known != nil {
		return known, factor
	}
	name := make([]string, 0, len(key)+1)
	for _, part := range key {
		name = append(name, strings.TrimSuffix(snakeCase(part), "-ms"))
	}
	if u != none {
		name = append(name, string(u))
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.names[k] = name
	return name, factor
}

// snakeCase converts a word like dispatchNumLogs. The result of another
// conversion is the same.
func snakeCase(word string) string {
	var b strings.Builder
	lower := false // the last rune is a lower case letter or a digit
	for _, r := range word {
		if unicode.IsUpper(r) && lower {
			b.WriteByte('_')
		}
		lower = unicode.IsLower(r) || unicode.IsDigit(r)
		b.WriteRune(unicode.ToLower(r))
	}
	return b.String()
}

// SetGauge implements metrics.MetricSink.
func (s *sink) SetGauge(key []string, v float32) { s.SetGaugeWithLabels(key, v, nil) }

// SetGaugeWithLabels implements metrics.MetricSink.
func (s *sink) SetGaugeWithLabels(key []string, v float32, labels []metrics.Label) {
	u := none
	if slices.Contains(times, key[len(key)-1]) {
		u = seconds
	}
	name, factor := s.name(key, u)
	s.to.SetGaugeWithLabels(name, v*factor, labels)
}

// EmitKey implements metrics.MetricSink. Prometheus has no such metrics.
func (s *sink) EmitKey([]string, float32) {}

// IncrCounter implements metrics.MetricSink.
func (s *sink) IncrCounter(key []string, v float32) { s.IncrCounterWithLabels(key, v, nil) }

// IncrCounterWithLabels implements metrics.MetricSink.
func (s *sink) IncrCounterWithLabels(key []string, v float32, labels []metrics.Label) {
	name, _ := s.name(key, total)
	s.to.IncrCounterWithLabels(name, v, labels)
}

// AddSample implements metrics.MetricSink.
func (s *sink) AddSample(key []string, v float32) { s.AddSampleWithLabels(key, v, nil) }

// AddSampleWithLabels implements metrics.MetricSink.
func (s *sink) AddSampleWithLabels(key []string, v float32, labels []metrics.Label) {
	u := seconds
	if slices.ContainsFunc(key, func(part string) bool { return slices.Contains(numbers, part) }) {
		u = none
	}
	k := keyOf(key, u)
	if len(labels) == 0 {
		s.mu.RLock()
		known, ok := s.samples[k]
		s.mu.RUnlock()
		if ok {
			known.to.Observe(float64(v * known.factor))
			return
		}
	}
	name, factor := s.name(key, u)
	full := notInNames.Replace(strings.Join(name, "_"))
	id, constant := full, make(prometheus.Labels, len(labels))
	for _, l := range labels {
		id += "\x00" + l.Name + "\x00" + l.Value
		constant[notInNames.Replace(l.Name)] = l.Value
	}
	summary, ok := s.summaries.Load(id)
	if !ok {
		added := prometheus.NewSummary(prometheus.SummaryOpts{Name: full, Help: full, ConstLabels: constant})
		if summary, ok = s.summaries.LoadOrStore(id, added); !ok {
			_ = prometheus.Register(added) // an invalid metric is not shown
		}
	}
	known := sample{summary.(prometheus.Summary), factor}
	if len(labels) == 0 {
		s.mu.Lock()
		s.samples[k] = known
		s.mu.Unlock()
	}
	known.to.Observe(float64(v * factor))
}

// notInNames replaces the characters of a name in a library that a name in
// Prometheus must not have.
var notInNames = strings.NewReplacer(" ", "_", ".", "_", "=", "_", "-", "_", "/", "_")
