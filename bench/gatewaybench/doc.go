// SPDX-License-Identifier: MPL-2.0

// Command gatewaybench compares the data plane of a gateway with HAProxy and nginx: throughput, new connections, latency,
// memory of idle and of stalled connections, and what route changes, a new process and a stop do to open ones. It starts
// everything itself, on 127.0.0.1, and ends it again. What is measured, and how, is package load's; which contenders there are
// and what their figures must be is here.
//
// # Flow
//
// In each round, each row has all contenders one after another, in another order each time. For a run, fresh servers and a
// fresh proxy are started, the proxy on a core of its own; then a process with the clients on the servers' core, which
// tells its figures. A run that other processes have disturbed is repeated, and is left out if it is not among the quieter
// half even so. At the end come the medians over the rounds, the ratio of each subject's to the best peer's, and whether the
// goal is met.
//
// # Contenders
//
// wanfed gateway with a route file, and any --proxy, are subjects. Peers are HAProxy with its defaults, with splice-auto, and
// tuned (splice both ways, pipes of 1 MiB), and nginx (stream, ssl_preread), all with one thread and the gateway's deadline
// for hellos. direct is no proxy: what the ends can do, here.
//
// # Goroutines and processes
//
// The main goroutine does one run at a time. Children have process groups of their own, which are killed after each run;
// if this process is killed, the kernel ends them.
//
// # Limits
//
// Linux. The ratios of one run of the program count; its figures are those of one machine. With fewer than two cores, or
// busy ones, even ratios say little: see the column "others", the cores that other processes used. 9,500 proxied connections
// take 20,000 files in the proxy.
//
// # Example
//
//	make bench-gateway
//	make bench-gateway BENCHFLAGS='--rows bulk/raw,idle --rounds 3'
//	go run ./gatewaybench --peers nginx --proxy 'new=/tmp/new/wanfed gateway --listen {listen} --routes {routes} --max-conns-per-source=-1'
package main
