// SPDX-License-Identifier: MPL-2.0

package gatewayd

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/wanfed/wanfed/gateway"
)

// collector reads the counters of a gateway at each scrape.
type collector struct{ p *process }

func desc(name, help string, labels ...string) *prometheus.Desc {
	return prometheus.NewDesc("wanfed_gateway_"+name, help, labels, nil)
}

var (
	descAccepted  = desc("accepted_total", "Connections accepted.", "listener")
	descRefused   = desc("refused_total", "Connections not forwarded, by reason.", "listener", "reason")
	descActive    = desc("active", "Open client connections.", "listener")
	descBytes     = desc("bytes_total", "Bytes forwarded; up is from client to upstream.", "listener", "direction")
	descDialFails = desc("dial_failures_total", "Failed attempts to connect to an upstream address.", "listener")
	descSources   = desc("sources", "IPv4 addresses and IPv6 /64 networks with open connections.", "listener")
	descHello     = desc("hello_seconds",
		"Time from accept to the complete ClientHello, by route class: exact, wildcard or none.", "listener", "route")
	descDial = desc("dial_seconds",
		"Time from the complete ClientHello to the upstream connection, by route class.", "listener", "route")
	descMaxConns   = desc("max_conns", "Maximum number of client connections, all listeners together.")
	descMaxFiles   = desc("max_files", "Maximum number of open files and sockets of the process.")
	descStopping   = desc("stopping", "1 if the gateway stops or was replaced by a new process, else 0.")
	descLogDropped = desc("access_log_dropped_total",
		"Lines missing in the access log because its file is too slow or failed.")
	descRoutes   = desc("routes", "Routes in the table.", "listener")
	descSnapshot = desc("snapshot_age_seconds",
		"Time since a server last sent or confirmed the routes in use.", "source")
	descRegistered = desc("registered_age_seconds", "Time since a server last acknowledged a heartbeat.")
)

// Describe implements prometheus.Collector. It describes nothing, because some
// metrics appear later.
func (collector) Describe(chan<- *prometheus.Desc) {}

// Collect implements prometheus.Collector.
func (c collector) Collect(ch chan<- prometheus.Metric) {
	send := func(d *prometheus.Desc, t prometheus.ValueType, v float64, labels ...string) {
		ch <- prometheus.MustNewConstMetric(d, t, v, labels...)
	}
	stopping := 0.0
	if c.p.stopping.Load() != nil {
		stopping = 1
	}
	send(descStopping, prometheus.GaugeValue, stopping)
	send(descMaxConns, prometheus.GaugeValue, float64(c.p.proxy.MaxConns()))
	send(descMaxFiles, prometheus.GaugeValue, float64(gateway.MaxFiles()))
	send(descLogDropped, prometheus.CounterValue, float64(c.p.proxy.AccessLogDropped()))
	for _, l := range c.p.listeners {
		st := l.Stats()
		send(descAccepted, prometheus.CounterValue, float64(st.Accepted), l.Name())
		send(descActive, prometheus.GaugeValue, float64(st.Active), l.Name())
		send(descBytes, prometheus.CounterValue, float64(st.BytesUp), l.Name(), "up")
		send(descBytes, prometheus.CounterValue, float64(st.BytesDown), l.Name(), "down")
		send(descDialFails, prometheus.CounterValue, float64(st.DialFailures), l.Name())
		send(descRoutes, prometheus.GaugeValue, float64(l.Table().Len()), l.Name())
		for reason, n := range st.Refused {
			send(descRefused, prometheus.CounterValue, float64(n), l.Name(), reason.String())
		}
		send(descSources, prometheus.GaugeValue, float64(st.Sources), l.Name())
		sendHistograms(ch, descHello, l.Name(), st.Hellos)
		sendHistograms(ch, descDial, l.Name(), st.Dials)
	}
	if c.p.client == nil {
		return
	}
	st := c.p.client.Status()
	if !st.SnapshotAt.IsZero() {
		send(descSnapshot, prometheus.GaugeValue, time.Since(st.SnapshotAt).Seconds(), st.Source())
	}
	if !st.Registered.IsZero() {
		send(descRegistered, prometheus.GaugeValue, time.Since(st.Registered).Seconds())
	}
}

func sendHistograms(
	ch chan<- prometheus.Metric, d *prometheus.Desc, listener string, byClass map[gateway.RouteClass]gateway.Histogram,
) {
	for class, h := range byClass {
		buckets := make(map[float64]uint64, len(h.Buckets))
		for i, n := range h.Buckets {
			buckets[gateway.HistogramBounds[i].Seconds()] = n
		}
		ch <- prometheus.MustNewConstHistogram(d, h.Count, h.Sum.Seconds(), buckets, listener, class.String())
	}
}
