// SPDX-License-Identifier: MPL-2.0

// Package memory keeps resources in memory. State is the state machine that the Raft store applies its log to; Store is a
// resource.Backend by itself, for tests and caches. What a Backend promises is said in package resource.
//
// # State
//
// A go-memdb database holds the resources, by group, kind, tenancy and name, by uid and by the owner's uid, and for each type
// the index of its last write. Apply takes one batch of ops and the store index it has: all of the batch is done in one
// transaction, or nothing. It is a function of the state and its arguments alone, so that every server that applies the
// same log has the same state. The version of a resource is the index of its last write, in decimal.
//
// # Watches
//
// Each type has a log of its latest commits, kept only while somebody watches the type and bounded in events. A commit is
// appended together with the transaction, under one lock; a watch takes its snapshot and its place in the log under the
// same lock, so that nothing is lost or doubled between the two. A watch holds a position, not a pointer: one that is idle
// or too slow keeps nothing alive, and is told resource.ErrWatchReset when the log no longer reaches back to it. Waiting
// costs a channel that the next commit to the type closes.
//
// # Snapshots
//
// Snapshot is a consistent view in constant time; WriteTo streams it, Restore reads such a stream, replaces everything in
// one step and resets all watches. The index of a type never falls, whatever is restored. snapshot.go has the format.
//
// # Limits
//
// No goroutine is started. Methods block only where resource.Backend says so.
//
// Where resource.Backend leaves a choice: a new resource must name an owner that is stored (resource.ErrNotFound), else it
// would outlive it; a replica need not, since the owner may come later. A write that puts another uid in a resource's place
// deletes the old resource, with what it owns, and watches see that. The event of a deletion shows the resource as it was
// last, but with the index of the deletion as ModifyIndex. State leaves tombstones to whoever calls resource.Reap; Store works
// them off before Commit returns.
//
//	s := memory.New()
//	defer s.Close()
//	stored, err := s.Commit(ctx, resource.PutOp(r, ""))
package memory
