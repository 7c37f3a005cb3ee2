// SPDX-License-Identifier: MPL-2.0

// Package task defines the resource types of the sync daemon, and the rules for
// them. Servers register the types. The same rules apply to tasks in
// configuration files, in requests of the daemon's HTTP API, and in "wanfed
// resource apply".
//
//	sync/v1/Task      what runs, and when
//	sync/v1/Run       one execution of a task; the newest MaxRuns are kept
//	sync/v1/State     claim, lock, versions of Terraform's state, applied digests
//	sync/v1/Chunk     a part of an encrypted state
//	sync/v1/Instance  a daemon
//
// The types are not federated: each datacenter has its own tasks. Operators and
// daemons (tlsutil.RoleSync) write them. Clients may read all but State and
// Chunk.
//
// # Variables
//
// Each kind of query defines a variable of the driver. A task defines each
// variable once. Only services may have several conditions, or several inputs,
// for example for several datacenters: the variable has the instances of all.
//
// # Claims
//
// One daemon at a time runs a task. It holds the lease LeaseName(task), and
// writes the fencing token of the lease as epoch into the State. A daemon
// changes a State only by a compare-and-swap, and only if the epoch in it is not
// higher than its own. The write of a daemon whose claim was taken over
// therefore fails. A daemon that lost its lease, but was not replaced, can still
// store the state of a run.
package task
