// SPDX-License-Identifier: MPL-2.0

package monitor

import (
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
}

// NewHTTPRequests returns the metrics of the HTTP API.
func NewHTTPRequests() *Requests {
	return &Requests{
		counter("http_requests_total", "HTTP requests, by route and class of the status, also for other datacenters.",
			"route", "code"),
		histogram("http_request_seconds", "Time to serve an HTTP request, except for those that wait for a change.", "route"),
	}
}

// NewCalls returns the metrics of gRPC calls.
func NewCalls() *Requests {
	return &Requests{
		counter("grpc_calls_total", "gRPC calls and streams that ended, by method and code.", "method", "code"),
		histogram("grpc_call_seconds", "Time to serve a gRPC call, except for streams.", "method"),
	}
}

// NewForwarded returns the metrics of requests to other datacenters.
func NewForwarded() *Requests {
	return &Requests{
		counter("forwarded_requests_total", "Requests of clients that this server sent to another datacenter, by result: "+
			"ok, refused, failed, unreachable, timeout or cancelled.", "dc", "result"),
		histogram("forwarded_request_seconds",
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
		r.total.WithLabelValues(name, result).Inc()
	}
}

// Observe counts a request that took d.
func (r *Requests) Observe(name, result string, d time.Duration) {
	if r != nil {
		r.total.WithLabelValues(name, result).Inc()
		r.seconds.WithLabelValues(name).Observe(d.Seconds())
	}
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
