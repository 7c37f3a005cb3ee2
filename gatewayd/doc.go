// SPDX-License-Identifier: MPL-2.0

// Package gatewayd is the gateway process: it runs the data plane of package
// gateway with settings, signals, an admin address and an access log. It works
// on Unix only.
//
//	s := gatewayd.DefaultSettings()
//	s.Listen, s.Routes = []string{"0.0.0.0:8443"}, "routes.hcl"
//	err := gatewayd.Run(ctx, gatewayd.Config{Settings: s, Reload: reload, Stdout: os.Stdout, Stderr: os.Stderr})
//
// A gateway has one of two kinds. The gateway of a datacenter registers with
// the servers of its datacenter, or with a Consul agent, and receives its routes
// from there (package gateway/proxycfg). A standalone gateway reads its routes
// from a file.
//
// Run opens the sockets, or takes them over from an old process or from the
// service manager. Then it serves until its context ends:
//
//   - SIGHUP reads the settings again, including the routes of a standalone
//     gateway, and opens the access log again. Settings with the tag live change.
//     The other settings need a new process. An error changes nothing.
//   - SIGUSR2 starts a new process of the program, which takes over the sockets
//     (package internal/hotrestart). This process then drains its connections.
//     If the new process fails, this process serves on without a change.
//   - The end of the context stops the process in order. First /readyz fails and
//     the gateway deregisters. After shutdown_delay the gateway accepts no more
//     connections. After drain_time it closes the open connections.
//
// A reload or a hot restart refuses no connection and closes none. The service
// manager is notified of start, reload and stop (sd_notify).
//
// The admin address serves /healthz, /readyz, /routes, /metrics and, for the
// gateway of a datacenter, /status and /snapshot. With the setting pprof it also
// serves /debug/pprof. It must be a loopback address, because it has neither TLS
// nor authentication.
//
// RunEnvoy runs Envoy in place of the data plane. It starts Envoy with a
// bootstrap, and Envoy receives its routes from the servers (package
// gateway/xds). RunEnvoy sends the heartbeats, and drains Envoy at the end.
//
// Run and RunEnvoy join every goroutine that they start. While Run runs, it owns
// the signals SIGHUP and SIGUSR2 of the process, so one process runs one
// gateway.
package gatewayd
