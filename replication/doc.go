// SPDX-License-Identifier: MPL-2.0

// Package replication copies federated resources from the primary datacenter to
// the secondaries. docs/how-it-works.md describes the behavior, and
// docs/primary.md the change of the primary. This page describes the components
// and the protocol.
//
//   - AntiEntropy writes the federation state of the local datacenter, which
//     lists its gateways, to the primary.
//   - Source serves the stream ReplicationService.Follow. It runs on each
//     server and serves followers while the datacenter is the primary.
//   - Follower opens that stream to any server of the primary and commits the
//     received replicas. It runs on the leader of each secondary.
//   - PrimaryManager determines which datacenter is the primary, performs a
//     change of the primary, and runs the Follower.
//
// Each server creates the components, and the leader runs PrimaryManager:
//
//	p, err := replication.NewPrimaryManager(cfg)
//	s := replication.NewSource(p, backend)
//	pb.RegisterReplicationServiceServer(server, s)
//	go s.Run(ctx)
//	go p.Run(ctx, backend)
//	go p.RunLeader(leaderCtx)   // on the leader only
//	backend = p.Fenced(backend) // for writers of federated resources
//
// Package server authorizes the calls. Package resource forwards writes of
// federated types from a secondary to the primary.
//
// # Stream
//
// One stream carries all federated types. Each Source keeps a log of the latest
// commits that changed federated resources. The Follower sends its position:
// the index of a commit in the primary, and a checksum of the commit's
// contents. A Source whose log contains that commit sends the later changes.
// All servers of the primary accept the position. A primary that was
// reinstalled or restored does not accept it.
//
// Without a common position, both sides compare their resources, kind by kind.
// A kind is a type without its version. The Follower divides the resources of a
// kind into buckets by a hash of their names, and sends a checksum of each
// bucket. The Source requests the digests of the buckets that differ. A digest
// is the name, uid and index of one resource. Then the Source sends the
// resources that differ.
//
// After that, the Source sends each change when it is committed. The Follower
// commits all received messages in one Raft entry. A slow Follower does not
// delay others and costs the primary no memory except the log. Its stream ends
// when the log evicts a commit that was not sent, or when the primary restores
// a snapshot.
//
// Streams and updates are retried with backoff (100 ms to 3 s, with jitter),
// and immediately when the paths to the primary change.
//
// # Replicas
//
// A replica is the local copy of a resource of the primary. Its
// PrimaryModifyIndex is the ModifyIndex in the primary. The local resources
// that a replica owns are deleted with the replica. A resource whose group
// version changes keeps its identity.
//
// The Follower refuses and counts changes of types that are not federated. It
// logs once each type that only the primary supports, and counts the resources
// of that type. Replicas of a type that the primary does not support stay
// unchanged.
//
// A secondary has resources of its own of a federated type if they were written
// before the type was federated, or while the datacenter was the primary. The
// Follower logs their names and replaces or deletes them.
//
// # Change of the primary
//
// The resource internal/v1/Primary in the store of each datacenter names its
// primary. The leader changes it when all alive servers of the datacenter are
// configured with another primary. Other datacenters can follow a datacenter
// only if that resource names the datacenter itself. Therefore two datacenters
// never follow each other. The indexes of two primaries are unrelated, so the
// first comparison with another primary ignores indexes.
//
// A new primary needs the consent of the former primary, or a command of an
// operator. The former primary gives its consent by its demotion: it stores
// HandedTo, after which Fenced lets no write pass, and announces the successor
// in its streams. The successor copies all resources from a stream with that
// announcement. The command of an operator is a call of
// PrimaryManager.TakeOver. No timeout replaces the consent or the command.
//
// # Epochs
//
// An Epoch is a number and the name of the primary. The first primary has the
// number 1. A promotion with the consent of the former primary uses its number plus
// 1, and a take-over the next multiple of 100. The higher number supersedes the lower
// one. If two datacenters take over at the same time, their numbers are equal, and
// the greater name wins. Two datacenters that never took over do not supersede each
// other: one of them is new and has a wrong configuration.
//
// The highest known epoch travels in the metadata of all calls between
// datacenters and of the responses of unary calls, in all messages of a stream,
// and in the error with which a secondary refuses a follower. Each federated
// resource has the number of the epoch that stored it.
//
// A reported epoch is a hint: the certificate of one datacenter proves nothing
// about another one. PrimaryManager.Report records it, and PrimaryManager.Run probes
// the datacenter of the epoch, and then those that reported it, for a proof
// (pb.EpochProof): the consent that a server of the last known primary has signed, or
// the take-over that an operator and a server of the new primary have signed. The tag
// of a WAN member is a hint too, after which the leader probes the member's
// datacenter. A proven higher epoch is recorded in memory, and Run stores it in the
// primary resource, with its proof. Writable fails as soon as the epoch is in memory.
// A write whose commit overlaps with that moment fails with
// resource.ErrUnknownOutcome.
//
// A demotion is canceled when the servers are configured with the former
// primary again, or with another successor. The successor may already have
// copied all resources. Therefore the former primary withdraws its consent, and
// waits until the successor has confirmed that it will not use it. Then it
// continues with the highest known number plus 2, which no consent of it proves. A
// primary that was replaced has no consent to give: a promotion then needs that of
// the datacenter that has replaced it.
//
// A former primary may have acknowledged writes that the new primary lacks. It
// saves them in a file before the Follower commits what replaces them. The new
// primary reports how far it had followed each FormerPrimary. Resources up to
// that index are not saved: the new primary had them. A Follower stores its
// index every 10 s and at the end of a stream, so that a restarted leader can
// report it.
//
// # Goroutines
//
// AntiEntropy.Run, Source.Run, PrimaryManager.Run and PrimaryManager.RunLeader
// join the goroutines that they start. RunLeader runs the Follower.
// Source.Follow runs in the goroutine of its gRPC call.
package replication
