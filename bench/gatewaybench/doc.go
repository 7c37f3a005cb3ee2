// SPDX-License-Identifier: MPL-2.0

// Command gatewaybench compares the data plane of a gateway with HAProxy, nginx
// and Envoy. It measures throughput, new connections, latency, and the memory of
// idle and stalled connections. It also measures how route changes, hot
// restarts and stops affect open connections. It starts all processes itself,
// on 127.0.0.1, and stops them at the end.
//
// Package load defines the measurements. This package defines the contenders,
// the rows and their goals.
//
// # Flow
//
// In each round, each row runs with all contenders in random order. Each run
// starts new servers and a new proxy, which has a core of its own. A third
// process then runs the clients on the core of the servers, and reports its
// figures. A run that other processes have disturbed is repeated. A round that
// stays disturbed does not count, except that the less disturbed half of the
// rounds always counts. The table shows medians over the rounds, the ratio of
// each subject to the best peer, and whether the goal is met.
//
// # Contenders
//
// Subjects are the proxies that are judged: wanfed gateway with a route file,
// and each --proxy. Peers are the proxies that subjects are compared with, all
// with one thread and the gateway's ClientHello timeout, except as listed:
//
//   - haproxy: HAProxy with its defaults
//   - haproxy-splice: HAProxy with splice-auto
//   - haproxy-tuned: HAProxy that splices both directions, with pipes of 1 MiB
//   - nginx: nginx with the stream module and ssl_preread
//   - envoy: Envoy with two workers and the configuration that wanfed's servers
//     send by xDS, whose ClientHello timeout is 10 s
//
// The contender direct has no proxy. It shows the limit of the clients and
// servers on this machine.
//
// # Goroutines and processes
//
// The main goroutine makes one run at a time. Each child process has its own
// process group, which is killed after the run. If gatewaybench is killed, the
// kernel ends its children.
//
// # Limits
//
// Linux only. Compare the ratios of one invocation: absolute figures depend on
// the machine. Ratios are not reliable with fewer than two cores, or while
// other processes use them. The column "others" shows the number of cores that
// other processes used. With 9,500 connections, the proxy needs 20,000 open
// files.
//
// # Example
//
//	make bench-gateway
//	make bench-gateway BENCHFLAGS='--rows bulk/raw,idle --rounds 3'
//	go run ./gatewaybench --peers nginx --proxy 'new=/tmp/new/wanfed gateway --listen {listen} --routes {routes} --max-conns-per-source=-1 --max-rate-per-source=0'
package main
