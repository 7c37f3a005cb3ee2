// SPDX-License-Identifier: MPL-2.0

// Package memory stores resources in memory. State is the state machine to
// which the Raft store applies its log. The methods of State implement the
// methods of resource.Backend, which documents the guarantees.
//
//	s := memory.NewState()
//	defer s.Close()
//	entry := &memory.Entry{Index: index, Ops: []*pb.Op{resource.PutOp(r, "")}}
//	s.Apply(entry) // sets entry.Resources and entry.Err
//
// # State
//
// The state is a set of ordered tables: resources by group, kind, tenancy and
// name; resources by the uid of their owner; the index of each type; and the
// latest deletions. A table is a copy-on-write B-tree. The writer changes its
// own tables and publishes a copy after each commit. Therefore a reader sees
// one state that never changes. All readers share the stored messages.
//
// Apply applies entries. An entry has ops and a store index. Either all ops of
// an entry are applied, or none. Readers see the effect of all entries at once.
// The result depends only on the state and the arguments, so all servers that
// apply the same log have the same state. The version of a resource is the
// decimal index of its last write.
//
// # Watches
//
// A watch or Wait follows a topic: the changes of one name, or of all names
// with one prefix. A topic exists only while it has a follower. A write appends
// one event to each topic of its name, and wakes only the followers of these
// topics. The commit and its events are one step under one lock. A watch takes
// its snapshot and joins its topic under the same lock. Therefore a watch
// receives each change exactly once.
//
// A topic retains the events that its slowest follower has not read, up to the
// limits in topic.go. The writer never waits for a follower. If a follower
// would exceed a limit, its watch ends with resource.ErrWatchReset. The restore
// of a snapshot ends all watches in the same way. A watch that stops reading
// its snapshot ends after many changes (see stallTimeout).
//
// # Indexes
//
// The index of a query is the index of the last write or deletion of a resource
// that the query selects. The latest 4096 to 8192 deletions are stored by name.
// When older deletions are dropped, the index of the latest dropped deletion
// becomes a lower bound for every query of its type.
//
// # Snapshots
//
// Snapshot returns a consistent view in constant time, and WriteTo streams the
// view. Restore reads such a stream and replaces the whole state in one step.
// The index of a type never falls. The format is described in snapshot.go.
//
// # Choices that resource.Backend leaves open
//
// The owner of a new resource must be stored (resource.ErrNotFound), because
// the resource would otherwise never be deleted. A replica may arrive before
// its owner. A write that replaces a resource with another uid deletes the old
// resource and its owned resources, and watches receive these events. A delete
// event has the last state of the resource, with the index of the deletion as
// ModifyIndex. State does not process tombstones: see
// resource.ReapOnce.
package memory
