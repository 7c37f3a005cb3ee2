// SPDX-License-Identifier: MPL-2.0

package main

import (
	"context"
	"encoding/json"
	"errors"
	"log/slog"
	"net"
	"net/http"
	"net/http/pprof"
	"net/netip"
	"strings"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/prometheus/client_golang/prometheus/promhttp"
)

// profileTime is how long an answer may take: that with a profile takes as long as the caller wants (seconds=30).
const profileTime = 5 * time.Minute

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
		Handler: h, ReadHeaderTimeout: 5 * time.Second, WriteTimeout: profileTime, IdleTimeout: time.Minute,
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

// adminHandler answers about a gateway, to callers on this machine.
func adminHandler(p *gatewayProcess) http.Handler {
	reg := prometheus.NewRegistry()
	reg.MustRegister(collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}), gatewayCollector{p})
	mux := http.NewServeMux()
	mux.Handle("GET /metrics", promhttp.HandlerFor(reg, promhttp.HandlerOpts{}))
	mux.HandleFunc("GET /healthz", func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write([]byte("ok\n")) })
	mux.HandleFunc("GET /readyz", func(w http.ResponseWriter, _ *http.Request) {
		if err := p.ready(); err != nil {
			http.Error(w, err.Error(), http.StatusServiceUnavailable)
			return
		}
		_, _ = w.Write([]byte("ok\n"))
	})
	mux.HandleFunc("GET /routes", func(w http.ResponseWriter, _ *http.Request) {
		writeJSON(w, shownRoutes(p.serving, p.proxy.UpstreamConns()))
	})
	if p.client != nil {
		mux.HandleFunc("GET /status", func(w http.ResponseWriter, _ *http.Request) { writeJSON(w, p.client.Status()) })
	}
	mux.HandleFunc("/debug/pprof/", pprof.Index)
	mux.HandleFunc("/debug/pprof/profile", pprof.Profile)
	mux.HandleFunc("/debug/pprof/trace", pprof.Trace)
	mux.HandleFunc("/debug/pprof/cmdline", pprof.Cmdline)
	mux.HandleFunc("/debug/pprof/symbol", pprof.Symbol)
	return onlyLocal(mux)
}

// onlyLocal refuses requests that a browser sends for a page of elsewhere, whose name someone made lead to this machine.
func onlyLocal(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		host, _, err := net.SplitHostPort(r.Host)
		if err != nil {
			host = strings.Trim(r.Host, "[]")
		}
		if ip, err := netip.ParseAddr(host); host != "localhost" && (err != nil || !ip.IsLoopback()) {
			http.Error(w, "ask by a loopback address", http.StatusForbidden)
			return
		}
		next.ServeHTTP(w, r)
	})
}

func writeJSON(w http.ResponseWriter, v any) {
	w.Header().Set("Content-Type", "application/json")
	enc := json.NewEncoder(w)
	enc.SetIndent("", "  ")
	_ = enc.Encode(v) // the client has gone
}
