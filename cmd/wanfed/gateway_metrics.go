// SPDX-License-Identifier: MPL-2.0

package main

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/wanfed/wanfed/gateway"
)

// gatewayCollector reads the counters at each scrape.
type gatewayCollector struct{ p *gatewayProcess }

func gatewayDesc(name, help string, labels ...string) *prometheus.Desc {
	return prometheus.NewDesc("wanfed_gateway_"+name, help, labels, nil)
}

var (
	descGwAccepted   = gatewayDesc("accepted_total", "Connections accepted.", "listener")
	descGwRefused    = gatewayDesc("refused_total", "Connections not forwarded, by reason.", "listener", "reason")
	descGwActive     = gatewayDesc("active", "Client connections open now.", "listener")
	descGwBytes      = gatewayDesc("bytes_total", "Bytes forwarded; up is from client to upstream.", "listener", "direction")
	descGwDialFails  = gatewayDesc("dial_failures_total", "Attempts to reach an upstream address that failed.", "listener")
	descGwSources    = gatewayDesc("sources", "Addresses (IPv6: networks of 64 bits) from which connections are open.", "listener")
	descGwHello      = gatewayDesc("hello_seconds", "Time from a connection's accept to its whole ClientHello, by class of its route: exact, wildcard or none.", "listener", "route")
	descGwDial       = gatewayDesc("dial_seconds", "Time from there to an upstream, by class of the route.", "listener", "route")
	descGwMax        = gatewayDesc("max_conns", "Client connections that may be open, of all listeners together.")
	descGwFiles      = gatewayDesc("max_files", "Files and sockets that the process may have open.")
	descGwLeaving    = gatewayDesc("leaving", "1 when the gateway stops, or another process has taken over, else 0.")
	descGwNoLine     = gatewayDesc("access_log_dropped_total", "Lines that the access log lacks: its file is too slow, or failed.")
	descGwRoutes     = gatewayDesc("routes", "Routes in the table.", "listener")
	descGwSnapshot   = gatewayDesc("snapshot_age_seconds", "Time since the snapshot in use was received; absent when it is from disk.")
	descGwRegistered = gatewayDesc("registered_age_seconds", "Time since a server last acknowledged a heartbeat.")
)

// Describe implements prometheus.Collector: unchecked, since some metrics come later.
func (gatewayCollector) Describe(chan<- *prometheus.Desc) {}

// Collect implements prometheus.Collector.
func (c gatewayCollector) Collect(ch chan<- prometheus.Metric) {
	send := func(d *prometheus.Desc, t prometheus.ValueType, v float64, labels ...string) {
		ch <- prometheus.MustNewConstMetric(d, t, v, labels...)
	}
	bounds := make([]float64, len(gateway.HistogramBounds))
	for i, b := range gateway.HistogramBounds {
		bounds[i] = b.Seconds()
	}
	histograms := func(d *prometheus.Desc, listener string, of map[gateway.RouteClass]gateway.Histogram) {
		for class, h := range of {
			buckets := make(map[float64]uint64, len(bounds))
			for i, n := range h.Buckets {
				buckets[bounds[i]] = n
			}
			ch <- prometheus.MustNewConstHistogram(d, h.Count, h.Sum.Seconds(), buckets, listener, class.String())
		}
	}
	leaving := 0.0
	if c.p.leaving.Load() != nil {
		leaving = 1
	}
	send(descGwLeaving, prometheus.GaugeValue, leaving)
	send(descGwMax, prometheus.GaugeValue, float64(c.p.proxy.MaxConns()))
	send(descGwFiles, prometheus.GaugeValue, float64(gateway.MaxFiles()))
	send(descGwNoLine, prometheus.CounterValue, float64(c.p.proxy.AccessLogDropped()))
	for _, s := range c.p.serving {
		st := s.Stats()
		send(descGwAccepted, prometheus.CounterValue, float64(st.Accepted), s.Name())
		send(descGwActive, prometheus.GaugeValue, float64(st.Active), s.Name())
		send(descGwBytes, prometheus.CounterValue, float64(st.BytesUp), s.Name(), "up")
		send(descGwBytes, prometheus.CounterValue, float64(st.BytesDown), s.Name(), "down")
		send(descGwDialFails, prometheus.CounterValue, float64(st.DialFailures), s.Name())
		send(descGwRoutes, prometheus.GaugeValue, float64(s.Table().Len()), s.Name())
		for reason, n := range st.Refused {
			send(descGwRefused, prometheus.CounterValue, float64(n), s.Name(), reason.String())
		}
		send(descGwSources, prometheus.GaugeValue, float64(st.Sources), s.Name())
		histograms(descGwHello, s.Name(), st.Hellos)
		histograms(descGwDial, s.Name(), st.Dials)
	}
	if c.p.client == nil {
		return
	}
	st := c.p.client.Status()
	if !st.SnapshotAt.IsZero() {
		send(descGwSnapshot, prometheus.GaugeValue, time.Since(st.SnapshotAt).Seconds())
	}
	if !st.Registered.IsZero() {
		send(descGwRegistered, prometheus.GaugeValue, time.Since(st.Registered).Seconds())
	}
}
