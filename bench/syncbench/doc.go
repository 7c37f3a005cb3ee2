// SPDX-License-Identifier: MPL-2.0

// Command syncbench measures the sync daemon: two datacenters, each with a server
// and a gateway, and a daemon of dc1, as processes on 127.0.0.1. There are -tasks
// tasks of the driver exec and -services instances of services. Each task has one
// service as its condition. Half of the services are in dc2, which the daemon
// reaches through both gateways.
//
// It prints the time until the daemon has all tasks after a restart, how many runs
// the restart caused, the time from the response of a write to the start of the
// program of the task, and the memory of the daemon. The same program, started by
// a process that watches the services itself, is the lower bound of that time.
//
// With -terraform, it runs the driver terraform without a daemon: one task with
// -services instances, compared with the root module that CTS generates, and
// -tasks new tasks, compared with the same commands in a script.
//
// # Limits
//
// Linux only: the memory comes from /proc. All processes share the machine.
//
// # Example
//
//	make bench-sync
//	make bench-sync BENCHFLAGS='-tasks 100 -services 1000'
package main
