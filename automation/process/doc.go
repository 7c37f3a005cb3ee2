// SPDX-License-Identifier: MPL-2.0

// Package process runs the programs of a task: one at a time in each directory,
// each in its own process group.
//
//	status, err := process.Program{ID: id, Step: "apply", Args: args, Dir: dir,
//		Env: env, Stdout: log, Stderr: log, Timeout: time.Hour, Grace: 30 * time.Second}.Run(ctx)
//
// # End of a program
//
// At the end of the context and after the timeout, the process group receives
// SIGINT, and SIGCONT if it is stopped. After the grace period it receives
// SIGKILL. When the program has ended, SIGKILL ends the rest of its process
// group. A program that was interrupted also has its descendants killed that
// left the group: each process of a run has the id of the run in its
// environment. Run returns killTime after the grace period at the latest.
//
// # End of the daemon
//
// A program survives the process that started it: its output is a file, and no
// signal is bound to its parent. The file run.json in the directory of the task
// has the id of the run and the process. Find returns the record to a later
// process, which waits for the program. The record stays after the end of the
// program, until the next one starts.
//
// A Guard limits the time for which programs may run without a daemon. It is
// another process, started from the executable of the daemon.
//
// Programs run only on Linux. The package starts one goroutine for each
// program, which ends before Run and Wait return.
package process
