// SPDX-License-Identifier: MPL-2.0

// Package raftstore is the resource.Backend of servers: the state machine of package memory, replicated among the servers
// of one datacenter by Raft (hashicorp/raft), with a write-ahead log and snapshots on disk. What a Backend promises is said
// in package resource.
//
// # Flow
//
// Open locks the directory, reads log and snapshots, and starts Raft as a follower. Servers are known to Raft by node name
// alone, as id and as address; the stream layer that the caller gives turns a name into a connection. A server without
// state waits until Bootstrap, or until a leader that was told AddVoter sends it the log. Commit turns ops into one log
// entry; when a majority has it on disk it is applied everywhere, and its result on the leader is what Commit returns.
//
// # Promises
//
// A batch that Commit acknowledged survives kill -9 and power loss of any minority of servers: entries are fsynced before
// they count. Commit returns resource.ErrNotLeader only if nothing was written, and resource.ErrUnknownOutcome if that
// cannot be known. A strong read sees everything acknowledged before it began, also right after an election; it is a
// round trip to a majority, not a log entry. Reads of any server never go back in time, until it restarts.
//
// # Leadership
//
// To lead means: elected, and everything that earlier leaders committed is applied here. IsLeader, Leader and
// RunWhileLeader speak of that. A term identifies a leadership; one that is lost and regained is another one.
//
// # Snapshots of operators
//
// Save gives the state of one moment, which stands in a file as Manifest.Header says. Restore makes such a state the group's,
// through Raft, at an index and version above all that ever were. What it has put in place here is not committed until a
// majority has it; if the others go on without it, the store fails (see unproven) and does not mix the two.
//
// # Goroutines
//
// Raft runs its own; Close joins them and the handlers of their connections. Open starts two more: one follows leadership,
// one hands Raft the calls of other servers. A Commit gets its result from the state machine itself; one goroutine, which ends a tenth of a
// second after the last, asks Raft what became of those that wait for long (see answers). Each strong read and membership change, and each Commit
// while 240 wait, starts one that waits for Raft's answer. Close waits for these as well; only if Raft drops an answer in the
// moment it stops does one outlive it, holding nothing but that answer.
//
// # Disks
//
// A disk that is full or read-only stops no store: it adds nothing to its log (resource.ErrUnwritable, Trouble), does not vote
// and so does not lead, and reads on; each later write is a try. That there is room is found out before anything is written: the file
// of the next segment is made while the last one has a quarter left (see room). After any other error of the log the store fails.
//
// # Failure
//
// A log entry that this version cannot apply, because a newer one wrote it, stops the store before it loses anything: Failed
// is closed, Err says why, all methods return that error, no snapshot is taken, and a newer version continues from the log.
//
//	s, err := raftstore.Open(raftstore.Config{Node: "srv1", Dir: dir, Stream: stream, Logger: logger})
//	if err == nil && !s.HasState() {
//		err = s.Bootstrap([]string{"srv1"})
//	}
//	defer s.Close()
//	err = s.RunWhileLeader(ctx, func(ctx context.Context) error { return controllers.Run(ctx) })
package raftstore
