// SPDX-License-Identifier: MPL-2.0

// Package automation is the sync daemon: it watches resources, and runs the
// driver of a task when a condition of the task is met.
//
//	d, err := automation.New(automation.Config{ID: "sync1", Dir: "/var/lib/wanfed/sync", ...})
//	err = d.Run(ctx)
//
// # Flow
//
// Tasks are resources (package automation/task). A controller reconciles them in
// each daemon of their group. The daemons agree on one daemon per task by a hash
// of the task and the ids of the daemons that can run it. This daemon acquires
// the lease of the task, and writes its claim into the state of the task
// (package automation/state). Then it opens the views of the conditions and
// inputs (package automation/view), and decides whether a run is due.
//
// Decisions depend on levels, not on events: a run is due when the digest of the
// conditions differs from the digest of the last successful run. No change can
// therefore be lost, and a restart runs nothing that was applied. A view that
// was never complete has no value, and its task waits.
//
// # Runs
//
// A run has a slot of Config.MaxRunning, in the order in which runs became due.
// When it has its slot, it reads the newest values. It writes its id into the
// state by a compare-and-swap. This write fails if another daemon has claimed
// the task, so a run does not start without the claim. A failed run is repeated
// with exponential backoff, and at once when its inputs change.
//
// # Failures
//
// A daemon that dies leaves its leases. Another daemon claims its tasks when the
// leases have expired. If the same daemon starts again before, it gets its
// leases back at once, because its identity is stored in its directory. Its
// drivers then look for runs that still execute, or that ended without a
// daemon, and the daemon stores their results.
//
// A program runs only while its daemon is certain to have the lease. At the end
// of this time, the daemon interrupts the run, and Config.Permit ends the program
// of a dead daemon. A daemon that claims a task with a run of another daemon waits
// until that program has ended. Two programs of one task therefore never run at
// the same time. Without a server, a run continues until then, and none starts.
//
// When its context ends, a daemon starts no runs, interrupts its runs after
// Config.StopTimeout, and releases its leases.
package automation
