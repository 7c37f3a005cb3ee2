// SPDX-License-Identifier: MPL-2.0

package monitor

import (
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

// bounds are the upper bounds of the buckets of durations, in seconds: from a
// read of memory to a timeout between datacenters.
var bounds = []float64{.00025, .0005, .001, .0025, .005, .01, .025, .05, .1, .25, .5, 1, 2.5, 5, 10}

// Requests counts requests of one kind and measures their durations. The label
// values must be of a bounded set. Its methods may be called from any goroutine.
// A nil Requests ignores all calls.
type Requests struct {
	total   *prometheus.CounterVec
	seconds *prometheus.HistogramVec
	names   sync.Map // of string, a name, to *series
}

// series has the metrics of one name. To find them by their labels costs twice
// as much for each request.
type series struct {
	seconds prometheus.Observer // nil until the first observation
	once    sync.Once           // guards seconds
	total   sync.Map            // of string, a result, to prometheus.Counter
}

// NewHTTPRequests returns the metrics of the HTTP API.
func NewHTTPRequests() *Requests {
	return &Requests{
		total: counter("http_requests_total", "HTTP requests, by route and class of the status, also for other datacenters.",
			"route", "code"),
		seconds: histogram("http_request_seconds", "Time to serve an HTTP request, except for those that wait for a change.", "route"),
	}
}

// NewCalls returns the metrics of gRPC calls.
func NewCalls() *Requests {
	return &Requests{
		total:   counter("grpc_calls_total", "gRPC calls and streams that ended, by method and code.", "method", "code"),
		seconds: histogram("grpc_call_seconds", "Time to serve a gRPC call, except for streams.", "method"),
	}
}

// NewForwarded returns the metrics of requests to other datacenters.
func NewForwarded() *Requests {
	return &Requests{
		total: counter("forwarded_requests_total", "Requests of clients that this server sent to another datacenter, by result: "+
			"ok, refused, failed, unreachable, timeout or cancelled.", "dc", "result"),
		seconds: histogram("forwarded_request_seconds",
			"Time to the response of another datacenter, except for requests that wait for a change.", "dc"),
	}
}

func counter(name, help string, labels ...string) *prometheus.CounterVec {
	return prometheus.NewCounterVec(prometheus.CounterOpts{Name: "wanfed_" + name, Help: help}, labels)
}

func histogram(name, help string, labels ...string) *prometheus.HistogramVec {
	return prometheus.NewHistogramVec(
		prometheus.HistogramOpts{Name: "wanfed_" + name, Help: help, Buckets: bounds}, labels)
}

// Count counts a request that waited for a change, or a stream.
func (r *Requests) Count(name, result string) {
	if r != nil {
		r.count(name, result)
	}
}

// Observe counts a request that took d.
func (r *Requests) Observe(name, result string, d time.Duration) {
	if r == nil {
		return
	}
	s := r.count(name, result)
	s.once.Do(func() { s.seconds = r.seconds.WithLabelValues(name) })
	s.seconds.Observe(d.Seconds())
}

func (r *Requests) count(name, result string) *series {
	found, ok := r.names.Load(name)
	if !ok {
		found, _ = r.names.LoadOrStore(name, &series{})
	}
	s := found.(*series)
	total, ok := s.total.Load(result)
	if !ok {
		total, _ = s.total.LoadOrStore(result, r.total.WithLabelValues(name, result))
	}
	total.(prometheus.Counter).Inc()
	return s
}

// Describe implements prometheus.Collector.
func (r *Requests) Describe(ch chan<- *prometheus.Desc) {
	r.total.Describe(ch)
	r.seconds.Describe(ch)
}

// Collect implements prometheus.Collector.
func (r *Requests) Collect(ch chan<- prometheus.Metric) {
	r.total.Collect(ch)
	r.seconds.Collect(ch)
}
