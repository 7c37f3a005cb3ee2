// SPDX-License-Identifier: MPL-2.0

package main

import (
	"context"
	"encoding/json"
	"errors"
	"log/slog"
	"net"
	"net/http"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/prometheus/client_golang/prometheus/promhttp"

	"github.com/wanfed/wanfed/gateway"
	"github.com/wanfed/wanfed/gateway/proxycfg"
)

// adminServer serves the admin address; the zero one serves nothing.
type adminServer struct {
	ln  net.Listener
	srv *http.Server
}

// listenAdmin listens on the admin address, if there is one.
func (l *listeners) listenAdmin(addr string, logger *slog.Logger) (net.Listener, error) {
	if addr == "" {
		return nil, nil
	}
	ln, err := l.listen("admin_addr", addr)
	if err != nil {
		return nil, err
	}
	logger.Info("admin address", "addr", "http://"+ln.Addr().String())
	return ln, nil
}

func newAdmin(ln net.Listener, h http.Handler) adminServer {
	if ln == nil {
		return adminServer{}
	}
	return adminServer{ln: ln, srv: &http.Server{
		Handler: h, ReadHeaderTimeout: 5 * time.Second, WriteTimeout: 30 * time.Second, IdleTimeout: time.Minute,
	}}
}

// run serves until ctx ends.
func (a adminServer) run(ctx context.Context) error {
	if a.srv == nil {
		return nil
	}
	stop := context.AfterFunc(ctx, func() { a.srv.Close() })
	defer stop()
	if err := a.srv.Serve(a.ln); ctx.Err() == nil && !errors.Is(err, http.ErrServerClosed) {
		return err
	}
	return nil
}

// adminHandler answers about the sides of a gateway; client is nil where it runs alone.
func adminHandler(sides []*gateway.Side, client *proxycfg.Client) http.Handler {
	reg := prometheus.NewRegistry()
	reg.MustRegister(collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}), gatewayCollector{sides, client})
	mux := http.NewServeMux()
	mux.Handle("GET /metrics", promhttp.HandlerFor(reg, promhttp.HandlerOpts{}))
	mux.HandleFunc("GET /healthz", func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write([]byte("ok\n")) })
	mux.HandleFunc("GET /readyz", func(w http.ResponseWriter, _ *http.Request) {
		if client != nil && !client.Status().HasSnapshot {
			http.Error(w, "no snapshot yet: no server has answered", http.StatusServiceUnavailable)
			return
		}
		_, _ = w.Write([]byte("ok\n"))
	})
	mux.HandleFunc("GET /routes", func(w http.ResponseWriter, _ *http.Request) {
		out := map[string][]gateway.Route{}
		for _, s := range sides {
			out[s.Name()] = s.Table().Routes()
		}
		writeJSON(w, out)
	})
	if client != nil {
		mux.HandleFunc("GET /status", func(w http.ResponseWriter, _ *http.Request) { writeJSON(w, client.Status()) })
	}
	return mux
}

func writeJSON(w http.ResponseWriter, v any) {
	w.Header().Set("Content-Type", "application/json")
	enc := json.NewEncoder(w)
	enc.SetIndent("", "  ")
	_ = enc.Encode(v) // the client has gone
}

// gatewayCollector reads the counters at each scrape.
type gatewayCollector struct {
	sides  []*gateway.Side
	client *proxycfg.Client
}

func gatewayDesc(name, help string, labels ...string) *prometheus.Desc {
	return prometheus.NewDesc("wanfed_gateway_"+name, help, labels, nil)
}

var (
	descGwAccepted   = gatewayDesc("accepted_total", "Connections accepted.", "side")
	descGwRefused    = gatewayDesc("refused_total", "Connections not forwarded, by reason.", "side", "reason")
	descGwActive     = gatewayDesc("active", "Client connections open now.", "side")
	descGwBytes      = gatewayDesc("bytes_total", "Bytes forwarded; up is from client to upstream.", "side", "direction")
	descGwDialFails  = gatewayDesc("dial_failures_total", "Attempts to reach an upstream address that failed.", "side")
	descGwRoutes     = gatewayDesc("routes", "Routes in the table.", "side")
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
	for _, s := range c.sides {
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
	}
	if c.client == nil {
		return
	}
	st := c.client.Status()
	if !st.SnapshotAt.IsZero() {
		send(descGwSnapshot, prometheus.GaugeValue, time.Since(st.SnapshotAt).Seconds())
	}
	if !st.Registered.IsZero() {
		send(descGwRegistered, prometheus.GaugeValue, time.Since(st.Registered).Seconds())
	}
}
