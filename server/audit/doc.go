// SPDX-License-Identifier: MPL-2.0

// Package audit keeps the audit log of a server: a file with one line of JSON
// for each write, each denied call and each action of an operator. A [Log] is the
// Recorder of package policy, which receives the calls of both edges.
//
//	log, err := audit.Open(audit.Config{File: "/var/log/wanfed/audit.log", DC: "dc1", Node: "srv1", ...})
//	engine := policy.New(policy.Config{DC: "dc1", Recorder: log})
//	go log.Run(ctx)
//
// # Lines
//
// A [Line] has the caller, the forwarding server, the address, the method, the
// resources, the outcome and the index of the write. It never has a value, a
// request body or a query string. Lines are in the order in which the calls
// ended at this server. The index orders the writes of all servers of a
// datacenter.
//
// # Guarantees
//
// With WhenFull [Refuse], a write that was acknowledged has a line on the disk.
// A call reserves its line before it writes. While the file cannot be written,
// or the queue is full, the reservation fails and the write is refused. After
// the write, the call waits until the line is synced to the disk. If that takes
// more than two seconds, the caller gets an error that the outcome is unknown.
// The line follows when the file can be written again. A crash can lose the
// lines of writes that were not acknowledged.
//
// With WhenFull [Drop], no write is refused and none waits. A line for which the
// queue has no space is dropped and counted.
//
// The line of a denied call is not reserved. Such lines use at most half of the
// queue, so that denied calls cannot cause the refusal of writes. After lines
// were dropped, a line with the outcome "dropped" has their number.
//
// # Limits
//
// The queue has at most 8192 lines and 8 MiB. Only the goroutine of Run writes
// the file, so a slow disk does not block the goroutines of the store or of Raft.
package audit
