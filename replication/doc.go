// SPDX-License-Identifier: MPL-2.0

// Package replication replicates resources between datacenters. AntiEntropy
// sends each datacenter's own federation state to the primary. A Source in the
// primary and a Follower in each secondary replicate all federated resources.
// PrimaryManager determines which datacenter is the primary, and changes it.
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
// The package does not interpret the data of a resource, except for federation
// states. Its configurations contain the functions that call other datacenters.
// Package server authorizes calls. Package resource forwards writes of federated
// types from a secondary to the primary.
//
// # Anti-entropy
//
// AntiEntropy runs on each datacenter's leader. It compares the gateways in the
// catalog with the local replica of the federation state after every change of
// either. If they differ, it writes the desired state in the primary. It queues
// nothing and always sends the current state. A state that was deleted in the
// primary is written again, because the deletion is replicated.
//
// # Replication
//
// One stream carries all federated types, of every scope. The Source on each
// server of the primary keeps a log of the latest commits that changed federated
// resources: up to 8192 changes and 16 MiB. The Follower on a secondary's leader
// sends its position. If the log reaches back to that position, the Source sends
// the later changes.
//
// Otherwise both sides compare their resources, kind by kind. The Follower sends
// one checksum for a bucket of about 32 resources, up to 1024 checksums. The
// Source requests the digests of the buckets that differ, and sends the
// resources that differ. An unchanged resource costs a quarter of a byte.
//
// After that, the Source sends each change when it is committed. A message
// contains at most about 1 MiB, and only the last of several changes of a
// resource. The Follower commits all received messages in one Raft entry.
//
// A position is the index of a commit and a checksum of its contents. Servers of
// the primary accept each other's positions. They do not accept positions of a
// primary that was reinstalled or restored. The stream ends when a snapshot is
// restored in the primary, or when the Follower lags further than the log
// reaches. The next stream begins with a comparison. A slow Follower does not
// delay other Followers, and the primary needs no memory for it except the log.
//
// # Replicas
//
// A replica has the id, owner, generation, metadata and data of the primary's
// resource. PrimaryModifyIndex is the primary's index. Status and version are
// local. A change of the status in the primary changes the index of all replicas.
// A replica is deleted when the primary's resource is deleted. Its finalizers and
// the deletion of its owner have no effect. Local resources that a replica owns
// are deleted with the replica. A resource that changes its group version keeps
// its identity.
//
// A secondary does not receive resources of types that its version does not
// support. The Follower logs each such type once and counts the resources
// (TypeStatus.Unknown). Replicas of a type that the primary does not support
// stay unchanged.
//
// A secondary may have its own resources of a federated type. They were written
// before the type was federated, or while the datacenter was the primary.
// Resources of the primary with the same names replace them, and all other
// local resources of the type are deleted. The Follower logs their names before
// the change. It refuses and counts changes of types that are not federated.
//
// # Change of the primary
//
// The store of each datacenter contains the name of its primary. The leader
// changes the name when all alive servers of the datacenter are configured with
// another primary. The former primary is demoted and rejects writes. The new
// primary follows the former one until it has every resource, or until the former
// primary has not responded for 20 s. Then the new primary adopts the replicas as
// its own resources.
//
// Other datacenters follow the former primary until they can follow the new one.
// A datacenter can be followed only if it owns its resources, so two datacenters
// never follow each other. The indexes of two primaries are unrelated. Therefore
// the first comparison with another primary ignores them.
//
// # Retries
//
// After an error, streams and updates are retried with backoff (100 ms to 3 s,
// with jitter). They are retried at once when the paths to the primary change.
// AntiEntropy also compares about once a minute.
//
// # Goroutines
//
// AntiEntropy.Run and PrimaryManager.RunLeader run on the leader. RunLeader runs
// the Follower. Source.Run runs on every server. Each of them joins the goroutines
// that it starts. Source.Follow runs in the goroutine of its gRPC call.
package replication
