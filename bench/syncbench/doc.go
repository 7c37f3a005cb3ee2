// SPDX-License-Identifier: MPL-2.0

// Command syncbench measures the sync daemon: a server and a daemon as processes
// on 127.0.0.1, with -tasks tasks of the driver exec and -services instances of
// services. Each task has one service as its condition.
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
// Linux only: the memory comes from /proc. Server, daemon and programs share the
// machine.
//
// # Example
//
//	make bench-sync
//	make bench-sync BENCHFLAGS='-tasks 100 -services 1000'
package main
