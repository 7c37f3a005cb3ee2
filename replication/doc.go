// SPDX-License-Identifier: MPL-2.0

// Package replication copies records between datacenters. AntiEntropy sends each
// datacenter's own federation state to the primary. A Source in the primary and
// a Follower in each secondary replicate all federated resources. PrimaryManager
// determines which datacenter is the primary, and changes it.
//
//	p, err := replication.NewPrimaryManager(cfg) // in every server
//	s, err := replication.NewSource(replication.SourceConfig{
//		Backend: backend, Registry: registry, Primary: p,
//	})
//	pb.RegisterReplicationServiceServer(server, s)
//	go s.Run(ctx)            // in every server
//	go p.RunLeader(leaderCtx) // while this server is the leader
//	backend = p.Fenced(backend) // for writers of federated resources
//
// The meaning of the records is defined in package federation and others. The
// configurations contain functions that reach other datacenters. Package server
// decides who may call. Package resource forwards writes of federated types from
// a secondary to the primary.
//
// # Anti-entropy
//
// AntiEntropy runs on each datacenter's leader. After every change of the gateways
// in the catalog, or of the local replica of the federation state, it compares the two.
// If they differ, it writes the desired state in the primary. It queues nothing
// and always sends the current state. A state that was deleted in the primary is
// written again, because the deletion is replicated.
//
// # Replication
//
// One stream carries all federated types, of every scope. The Source on each
// server of the primary keeps a log of the latest commits that changed federated
// resources: up to 8192 changes and 16 MiB. The Follower on a secondary's leader
// sends its position. If the log reaches back to that position, the changes since
// then follow.
//
// Otherwise both sides compare, kind by kind. The Follower sends one checksum for
// about 32 records, up to 1024 checksums. The Source requests the digests of the
// buckets that differ, and sends the difference. An unchanged record costs a
// quarter of a byte. Then each change follows as it is committed. One message
// contains about 1 MiB at most, and only the last of several changes of one
// record. The Follower commits all messages that have arrived in one Raft entry.
//
// A position is the index of a commit and a checksum of its contents. Servers of
// the primary accept each other's positions. They do not accept positions of a
// primary that was reinstalled or restored. Restoring a snapshot in the primary
// ends the stream, and so does a Follower that lags further than the log reaches.
// The next stream compares. A slow Follower delays nothing, and costs the primary
// no memory besides the log.
//
// # Replicas
//
// A replica has the id, owner, generation, metadata and data of the primary's
// resource. PrimaryModifyIndex is the primary's index. Status and version are
// local. A change of the status in the primary changes the index of all replicas.
// A replica is deleted with the primary's resource, not with its owner and
// whatever its finalizers. Local resources that a replica owns are deleted with
// it. A resource that changes its group version keeps its identity.
//
// A secondary receives no types that its version does not know. That is logged
// once and counted (TypeStatus.Unknown). Replicas of a type that the primary does
// not know stay unchanged. A secondary may have its own resources of a federated
// type: from before the type was federated, or from its time as the primary. The
// primary's resources of the same names replace them, and the others are deleted.
// Their names are logged before. A Follower refuses and counts everything but
// resources of federated types.
//
// # Change of the primary
//
// The store of each datacenter contains a record of its primary. The leader
// changes it when all alive servers of the datacenter are configured with another
// primary. The former primary is demoted: it accepts no more writes. The new one
// follows it until it has the last record, or until it has not answered for 20 s.
// Then it adopts the replicas as its own resources. Other datacenters follow the
// former primary until the new one can be followed. Only a datacenter that owns
// its resources can be followed, so that no two follow each other. The indexes
// of two primaries are unrelated: the first comparison with another primary
// ignores them.
//
// # Retries
//
// After an error, streams and updates are retried with backoff (100 ms to 3 s,
// with jitter), and at once when the paths to the primary change. AntiEntropy
// also compares about once a minute.
//
// # Goroutines
//
// AntiEntropy.Run and PrimaryManager.RunLeader, which runs the Follower, belong
// to the leader. Source.Run belongs to every server. Each joins what it starts.
// Source.Follow runs in its call.
package replication
