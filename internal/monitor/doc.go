// SPDX-License-Identifier: MPL-2.0

// Package monitor serves the health and the metrics of a process to load
// balancers, orchestrators and Prometheus.
//
//	cfg := monitor.Config{Addr: "https://0.0.0.0:9102", Identity: id, Ready: ready, Metrics: registry}
//	s, err := monitor.Listen(cfg)
//	err = s.Run(ctx)
//
// The listener is separate from the API, so that it may have any address. It
// serves three paths, and only reads:
//
//	/healthz  200 while the process runs
//	/readyz   200 while the process can do its work, or 503 and the reason
//	/metrics  the metrics of the process in the format of Prometheus
//
// With https, the listener has the certificate of the process and requires
// none from clients. With a token file, /metrics requires the token. The other
// paths do not, because the probes of orchestrators have no secrets.
package monitor
