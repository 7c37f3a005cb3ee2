// SPDX-License-Identifier: MPL-2.0

// Package memory keeps resources in memory. State is the state machine that the Raft store applies its log to; Store is a
// resource.Backend by itself, for tests and caches. What a Backend promises is said in package resource.
//
// # State
//
// Persistent trees hold the resources, by group, kind, tenancy and name, and by the owner's uid; for each type the index of its
// last write; and the latest deletions. A reader has one version of all of them, which nothing changes. ApplyAll takes entries,
// each some ops and the store index it has: all of an entry is done, or nothing, and readers see all entries at once. It is
// a function of the state and its arguments alone, so that every server that applies the same log has the same state. The version
// of a resource is the index of its last write, in decimal.
//
// A resource is stored as one piece of bytes, a row, of which each reader has messages made: a record of 256 bytes takes 400, and
// the collector does not look into it. What messages share with the row, the data, nobody may write to.
//
// # Watches
//
// Who watches or waits follows a topic: the changes to all names that begin with one prefix, or to one name. Topics are there
// only as long as somebody follows them, so that a write costs one append for each prefix of its name that is followed, however
// many follow it, and wakes nobody else. A commit is appended together with the transaction, under one lock; a watch takes its
// snapshot and its place in the topic under the same lock, so that nothing is lost or doubled between the two. The snapshot is
// read as it is asked for. While it is not read to its end, it keeps alive what has been replaced since; so a watch that has read nothing
// for 10 seconds is cut off as soon as 8192 changes have come since it was looked at.
//
// A topic keeps what its slowest follower has not read, up to 8192 events or 16 MiB, and all topics together 256 MiB. A
// follower that would make it more is cut off: it gets resource.ErrWatchReset. So does every follower when a snapshot is restored. The
// writer waits for no follower.
//
// A follower that has somebody send its events (Push) has no goroutine that wakes: a few for each commit serve all of them in turn. One
// whose send blocks keeps others waiting for milliseconds, once; then somebody else serves these, and it gets a goroutine of its own for
// a while.
//
// # Indexes
//
// The index of a query is the highest ModifyIndex of what it selects, or that of a deletion, if that is higher. The latest 4096
// to 8192 deletions are remembered by name; when older ones are forgotten, the latest of them counts for every name of its type.
//
// # Snapshots
//
// Snapshot is a consistent view in constant time; WriteTo streams it, Restore reads such a stream, replaces everything in
// one step and resets all watches. The index of a type never falls, whatever is restored. snapshot.go has the format.
//
// # Limits
//
// No goroutine is started but to wake or serve those who follow, for each commit that somebody follows; it ends when it has. Methods block only where
// resource.Backend says so.
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
