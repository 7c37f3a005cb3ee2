// SPDX-License-Identifier: MPL-2.0

// Package raftstore is the resource.ReplicatedBackend of servers: the state
// machine of package memory, replicated among the servers of one datacenter by
// Raft (hashicorp/raft), with a log and snapshots on disk. Package resource has
// the contract of a Backend.
//
// # Flow
//
// Open locks the directory, reads log and snapshots, and starts Raft as a
// follower. The id and the address of a server in Raft are its node name. The
// stream layer of Config turns a name into a connection. A server without state
// waits until Bootstrap, or until a leader adds it with AddVoter and sends it
// the log. Commit turns ops into one log entry. When a majority has the entry
// on disk, it is applied everywhere, and Commit returns the result of the
// leader.
//
// # Example
//
//	s, err := raftstore.Open(raftstore.Config{Node: "srv1", Dir: dir, Stream: stream, Logger: logger})
//	if err == nil && !s.HasState() {
//		err = s.Bootstrap([]string{"srv1"})
//	}
//	...
//	defer s.Close()
//	err = s.RunWhileLeader(ctx, func(ctx context.Context) error { return controllers.Run(ctx) })
//
// # Guarantees
//
// A batch that Commit acknowledged survives kill -9 and power loss of any
// minority of servers: an entry counts after an fsync. Commit returns
// resource.ErrNotLeader only if nothing was written. It returns
// resource.ErrUnknownOutcome if the batch may have been written. A strong read
// sees everything that was acknowledged before it began, also right after an
// election. It costs a round trip to a majority and no log entry. Reads of one
// server never go back in time until it restarts.
//
// A server leads when it is elected and has applied everything that earlier
// leaders committed. IsLeader, Leader and RunWhileLeader use this meaning.
//
// # Snapshot files
//
// Snapshot returns the state of one moment. Manifest.Header and ArchiveFile put
// it into a file. Restore replaces the state of the group with such a state,
// through Raft. The restored state has an index and a version above all earlier
// ones. A restored state is committed when a majority of the servers has it. If
// the other servers continue without it, the store fails (see snapshotGuard).
//
// # Goroutines
//
// Raft has its own goroutines. Open starts three more. One follows leadership,
// one passes the calls of other servers to Raft, and one watches the log and
// the failure of the store. Each commit, strong read and membership change has
// a goroutine that waits for Raft. Close joins all of them. There is one
// exception. If Raft drops a result at the moment it stops, the goroutine that
// waits for the result outlives Close. It holds only that result.
//
// # Disks
//
// A full or read-only disk does not stop a store. The store adds nothing to its
// log (resource.ErrReadOnly, WriteError), does not vote or lead, and continues
// to answer reads. Each later write is a new attempt. After any other disk
// error the store fails. Package raftlog has the details.
//
// # Failure
//
// A log entry that this version cannot apply, because a newer version wrote it,
// fails the store before anything is lost. Failed is closed, Err returns the
// reason, and all methods return that error. No snapshot is taken, so that a
// newer version continues from the log.
package raftstore
