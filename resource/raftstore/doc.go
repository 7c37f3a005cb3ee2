// SPDX-License-Identifier: MPL-2.0

// Package raftstore is the resource.ReplicatedBackend of servers. Raft
// (hashicorp/raft) replicates the state machine of package memory among the
// servers of one datacenter. The Raft log and the snapshots are on disk.
// Package resource has the contract of a Backend.
//
//	s, err := raftstore.Open(raftstore.Config{Node: "srv1", Dir: dir, Stream: stream, Logger: logger})
//	if err == nil && !s.HasState() {
//		err = s.Bootstrap([]string{"srv1"})
//	}
//	...
//	defer s.Close()
//	err = s.RunWhileLeader(ctx, func(ctx context.Context) error { return controllers.Run(ctx) })
//
// Open locks the directory, reads the log and the snapshots, and starts Raft as
// a follower. The node name is the id and the address of a server in Raft. The
// stream layer of Config connects to a node by its name. A server without state
// waits until Bootstrap is called, or until a leader adds it with AddVoter.
// Commit appends the ops as one log entry. When a majority has the entry on
// disk, all servers apply it, and Commit returns the result of the leader.
//
// # Guarantees
//
// A batch that Commit acknowledged is on the disks of a majority (fsync). It
// survives kill -9 and power loss of any minority of servers. If Commit returns
// resource.ErrNotLeader, nothing was written. If Commit returns
// resource.ErrUnknownOutcome, the batch may have been written. A strong read
// sees everything that was acknowledged before the read began, also right after
// an election. A strong read costs a round trip to a majority and no log entry.
// The reads of one server never return an older state until that server
// restarts.
//
// A server leads when it is elected and has applied everything that earlier
// leaders committed. IsLeader, Leader and RunWhileLeader use this definition.
//
// # Snapshot files
//
// Snapshot returns the state of one moment. Manifest.Header and ArchiveFile
// write the state to a file. Restore replaces the state of the group with a
// snapshot. If the other servers continue without the restored state, the store
// fails (see snapshotGuard).
//
// # Comparison of servers
//
// Checkpoint appends an entry at which each server keeps its state, and Digest
// returns a digest of that state. A server whose digest differs from the digest
// of a majority calls Resync with a snapshot of another server. See package
// server/operator.
//
// # Goroutines
//
// Raft has its own goroutines. Open starts three more: one tracks leadership,
// one passes the calls of other servers to Raft, and one reacts to errors of
// the log and to the failure of the store. Each commit, strong read and
// membership change has a goroutine that waits for Raft. Close joins all of
// them, with one exception: Raft may drop a result while it stops. The
// goroutine that waits for that result outlives Close.
//
// # Failure
//
// On a full or read-only disk, the store rejects writes (resource.ErrReadOnly,
// WriteError), does not vote or lead, and continues to serve reads. Each later
// write is a new attempt (see package raftlog). After any other disk error the
// store fails.
//
// A log entry that this version cannot apply, because a newer version wrote it,
// fails the store too. The store then takes no snapshot, so a newer version can
// continue from the log. When a store has failed, the channel Failed is closed,
// Err returns the reason, and all methods return that error.
package raftstore
