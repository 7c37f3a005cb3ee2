// SPDX-License-Identifier: MPL-2.0

// Package memory stores resources in memory. State is the state machine to which
// the Raft store applies its log. Store is a resource.Backend for tests and
// caches. The contract is that of resource.Backend.
//
//	s := memory.New()
//	defer s.Close()
//	stored, err := s.Commit(ctx, resource.PutOp(r, ""))
//
// # State
//
// The state is a set of ordered tables: resources by group, kind, tenancy and
// name; resources by the uid of their owner; the index of each type; and the
// latest deletions. A table is a copy-on-write B-tree. The writer changes its own
// tables and publishes a copy of them after each commit, so a reader sees one
// state that never changes. All readers share the stored messages.
//
// ApplyAll takes entries, each with ops and a store index. An entry is applied as
// a whole or not at all, and readers see all entries at once. The result depends
// only on the state and the arguments: all servers that apply the same log have
// the same state. The version of a resource is the decimal index of its last
// write.
//
// # Watches
//
// A watch or Wait follows a topic: the changes of all names with one prefix, or
// of one name. A topic exists only while it is followed. A write appends one event
// to each followed topic of its name, and wakes no other followers. The commit and
// its events are one step under one lock. A watch takes its snapshot and joins its
// topic under the same lock, so no change is lost or sent twice.
//
// A topic retains the events that its slowest follower has not read: up to 8192
// events or 16 MiB, and 256 MiB for all topics. A follower that would exceed a
// limit is cut off and gets resource.ErrWatchReset. So do all followers when a
// snapshot is restored. The writer never waits for a follower. A watch whose
// snapshot is not read keeps the replaced resources in memory. It is cut off if it
// reads nothing for 10 seconds while the index grows by more than 8192.
//
// # Indexes
//
// The index of a query is the highest ModifyIndex of the selected resources, or
// that of a later deletion. The latest 4096 to 8192 deletions are stored by name.
// When older ones are dropped, the latest dropped one counts for every name of its
// type.
//
// # Snapshots
//
// Snapshot returns a consistent view in constant time, and WriteTo streams it.
// Restore reads such a stream, replaces the whole state in one step, and resets
// all watches. The index of a type never falls. The format is described in
// snapshot.go.
//
// # Goroutines
//
// A commit may start a goroutine that wakes the followers of a topic, and ends
// then. A watch has a timer until its snapshot is read.
//
// # Choices that resource.Backend leaves open
//
// The owner of a new resource must be stored (resource.ErrNotFound), because
// nothing would delete the resource otherwise. A replica may arrive before its
// owner. A write that replaces a resource by one with another uid deletes the old
// one and what it owns, and watches get these events. A delete event has the last
// state of the resource, with the index of the deletion as ModifyIndex. State
// leaves tombstones to the caller of resource.Reap. Store deletes the owned
// resources before Commit returns.
package memory
