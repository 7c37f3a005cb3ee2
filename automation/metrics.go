// SPDX-License-Identifier: MPL-2.0

package automation

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/wanfed/wanfed/api/pb"
)

// metrics are the metrics of a daemon.
type metrics struct {
	runs    *prometheus.CounterVec
	seconds *prometheus.HistogramVec
	waiting prometheus.Histogram
}

func newMetrics() *metrics {
	buckets := prometheus.ExponentialBuckets(0.01, 4, 10)
	return &metrics{
		runs: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "wanfed_sync_runs_total", Help: "Runs that ended, by mode and result."}, []string{"mode", "result"}),
		seconds: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name: "wanfed_sync_run_seconds", Help: "Duration of runs, by mode.", Buckets: buckets}, []string{"mode"}),
		waiting: prometheus.NewHistogram(prometheus.HistogramOpts{
			Name: "wanfed_sync_queue_seconds", Help: "Time that due runs waited for a slot.", Buckets: buckets}),
	}
}

func (m *metrics) started(waited time.Duration) { m.waiting.Observe(waited.Seconds()) }

func (m *metrics) ended(r *pb.TaskRun) {
	m.runs.WithLabelValues(r.Mode, r.Result).Inc()
	m.seconds.WithLabelValues(r.Mode).Observe(r.EndedAt.AsTime().Sub(r.StartedAt.AsTime()).Seconds())
}

var (
	tasksDesc = prometheus.NewDesc("wanfed_sync_tasks", "Tasks that this daemon has claimed.", nil, nil)
	busyDesc  = prometheus.NewDesc("wanfed_sync_runs_active", "Runs that execute or wait for a slot.", nil, nil)
)

// Describe implements prometheus.Collector. The metrics of the controller have
// no descriptions in advance.
func (d *Daemon) Describe(chan<- *prometheus.Desc) {}

// Collect implements prometheus.Collector.
func (d *Daemon) Collect(ch chan<- prometheus.Metric) {
	d.metrics.runs.Collect(ch)
	d.metrics.seconds.Collect(ch)
	d.metrics.waiting.Collect(ch)
	d.runtime.Collect(ch)
	d.mu.Lock()
	defer d.mu.Unlock()
	claimed, busy := 0, 0
	for _, w := range d.works {
		if w.isActive() {
			busy++
		}
		if w.hasViews() {
			claimed++
		}
	}
	ch <- prometheus.MustNewConstMetric(tasksDesc, prometheus.GaugeValue, float64(claimed))
	ch <- prometheus.MustNewConstMetric(busyDesc, prometheus.GaugeValue, float64(busy))
}
