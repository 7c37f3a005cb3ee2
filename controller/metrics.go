// SPDX-License-Identifier: MPL-2.0

package controller

import (
	"math"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/wanfed/wanfed/resource"
)

// Status is the state of one controller.
type Status struct {
	Name      string
	Managed   string // group/version/Kind
	Watches   []string
	Placement string
	// Running is false while another process leads, and between a failure and
	// the next start.
	Running    bool
	Queued     int // ids that wait for a worker
	Reconciles uint64
	Errors     uint64
	// Rate is the number of reconciles per second, averaged over about a
	// minute.
	Rate float64
	// LastError is the last error of a reconcile or of a start, with its time.
	// Empty: none since the start of the process.
	LastError   string
	LastErrorAt time.Time
}

// desc returns name and help of a metric. All have the label controller.
func desc(name, help string) prometheus.Opts {
	return prometheus.Opts{Namespace: "wanfed", Subsystem: "controller", Name: name, Help: help}
}

var (
	descDepth = desc("queue_depth", "Ids that wait for a worker.")
	descWork  = desc("unfinished_work_seconds",
		"Sum of the time that workers have spent on ids that they have not finished.")
	descLongest = desc("longest_running_seconds",
		"Longest time that a worker has spent on an id that it has not finished.")
	descRunning    = desc("running", "1 while the controller runs in this process.")
	descLatency    = desc("queue_latency_seconds", "Histogram of the time that ids waited for a worker.")
	descDuration   = desc("reconcile_seconds", "Histogram of the duration of reconciles.")
	descReconciles = desc("reconciles_total", "Reconciles.")
	descErrors     = desc("reconcile_errors_total", "Reconciles that failed.")
	descRetries    = desc("retries_total", "Reconciles that were queued again after a failure.")
	descRestarts   = desc("restarts_total", "Starts of the controller after a failure.")
	descPanics     = desc("panics_total", "Panics of functions of the controller.")
)

// metrics has the metrics of one controller.
type metrics struct {
	latency, duration         prometheus.Histogram
	reconciles, errors        prometheus.Counter
	retries, restarts, panics prometheus.Counter

	mu     sync.Mutex
	queue  *queue // of the running instance; nil if none runs
	status Status // the counts, the rate and the last error
	rateAt time.Time
}

func newMetrics(name string) *metrics {
	labels := prometheus.Labels{"controller": name}
	counter := func(o prometheus.Opts) prometheus.Counter {
		o.ConstLabels = labels
		return prometheus.NewCounter(prometheus.CounterOpts(o))
	}
	histogram := func(o prometheus.Opts) prometheus.Histogram {
		return prometheus.NewHistogram(prometheus.HistogramOpts{
			Namespace: o.Namespace, Subsystem: o.Subsystem, Name: o.Name, Help: o.Help, ConstLabels: labels,
			Buckets: prometheus.ExponentialBuckets(1e-5, 10, 8),
		})
	}
	return &metrics{
		latency: histogram(descLatency), duration: histogram(descDuration),
		reconciles: counter(descReconciles), errors: counter(descErrors),
		retries: counter(descRetries), restarts: counter(descRestarts), panics: counter(descPanics),
	}
}

func (m *metrics) started(q *queue) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.queue = q
}

func (m *metrics) stopped() { m.started(nil) }

func (m *metrics) restarted(err error) {
	m.restarts.Inc()
	m.mu.Lock()
	defer m.mu.Unlock()
	m.failedLocked(err, time.Now())
}

func (m *metrics) failedLocked(err error, now time.Time) {
	if err != nil {
		m.status.LastError, m.status.LastErrorAt = err.Error(), now
	}
}

func (m *metrics) reconciled(waited, took time.Duration, err error) {
	m.latency.Observe(waited.Seconds())
	m.duration.Observe(took.Seconds())
	m.reconciles.Inc()
	if err != nil {
		m.errors.Inc()
		m.retries.Inc()
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	now := time.Now()
	m.status.Reconciles++
	m.status.Rate = m.rateLocked(now) + 1/rateWindow.Seconds()
	m.rateAt = now
	if err != nil {
		m.status.Errors++
		m.failedLocked(err, now)
	}
}

// rateWindow is the time constant of Status.Rate.
const rateWindow = time.Minute

// rateLocked returns the rate, which decays while nothing is reconciled.
func (m *metrics) rateLocked(now time.Time) float64 {
	if m.status.Rate == 0 {
		return 0
	}
	return m.status.Rate * math.Exp(-now.Sub(m.rateAt).Seconds()/rateWindow.Seconds())
}

// snapshot returns the status, without the fields of the declaration, and the
// queue of the running instance.
func (m *metrics) snapshot() (Status, *queue) {
	m.mu.Lock()
	defer m.mu.Unlock()
	s := m.status
	s.Rate = m.rateLocked(time.Now())
	return s, m.queue
}

// Status returns the state of each controller, in the order of New. It does not
// block.
func (rt *Runtime) Status() []Status {
	var all []Status
	for _, r := range rt.controllers {
		s, q := r.metrics.snapshot()
		s.Name, s.Managed, s.Placement = r.Name, resource.TypeString(r.Managed), r.Placement.String()
		for _, w := range r.Watches {
			s.Watches = append(s.Watches, resource.TypeString(w.Type))
		}
		if s.Running = q != nil; s.Running {
			s.Queued, _, _ = q.load()
		}
		all = append(all, s)
	}
	return all
}

// Describe implements prometheus.Collector. The metrics depend on the
// controllers, so it sends no descriptions.
func (*Runtime) Describe(chan<- *prometheus.Desc) {}

// Collect implements prometheus.Collector.
func (rt *Runtime) Collect(ch chan<- prometheus.Metric) {
	for _, r := range rt.controllers {
		m := r.metrics
		ch <- m.latency
		ch <- m.duration
		for _, c := range []prometheus.Counter{m.reconciles, m.errors, m.retries, m.restarts, m.panics} {
			ch <- c
		}
		gauge := func(o prometheus.Opts, v float64) {
			o.ConstLabels = prometheus.Labels{"controller": r.Name}
			g := prometheus.NewGauge(prometheus.GaugeOpts(o))
			g.Set(v)
			ch <- g
		}
		var depth int
		var unfinished, longest time.Duration
		running := 0.0
		if _, q := m.snapshot(); q != nil {
			depth, unfinished, longest = q.load()
			running = 1
		}
		gauge(descDepth, float64(depth))
		gauge(descWork, unfinished.Seconds())
		gauge(descLongest, longest.Seconds())
		gauge(descRunning, running)
	}
}
