// SPDX-License-Identifier: MPL-2.0

// Package replication moves records between datacenters: each datacenter's own federation state upward to the primary
// (AntiEntropy), and all records of federated types downward to every secondary (Source in the primary, Follower in a secondary).
//
// It leaves to others: what the records mean (package federation and others), how the far side is reached (the functions in
// the configs), who may call (package server), and writes of federated types in a secondary, which package resource forwards.
//
// # Upward
//
// AntiEntropy runs on each datacenter's leader. After every change of the catalog's gateways, or of the local copy of the own
// state, it compares the two and, when they differ, has the wanted state applied in the primary. Nothing is queued: it
// always sends what is true now. A state that somebody deleted in the primary comes back, because its loss is replicated.
//
// # Downward
//
// One stream carries all types that are registered as federated, of every scope. The Source on each of the primary's servers
// keeps a log of the latest commits that changed federated records: at most 8192 changes and 16 MiB. The Follower on a
// secondary's leader says the position up to which it has everything. If the log reaches back to it, each change since
// follows. Else both compare, kind by kind: the Follower sends one sum for some 32 records (1024 sums at most), is asked
// for the digests of those buckets whose sums differ, and gets the difference. What has not changed costs a fourth of a byte
// a record. Then each change follows as it is committed: what is ready goes in one message of about 1 MiB at most, with the
// last of several changes of one record alone, and the Follower commits all that has arrived in one Raft entry.
//
// A position is a commit's index and a sum of its content, so that servers of the primary know each other's positions, and
// none is taken for that of a primary that was set up anew or set back. A snapshot that is restored in the primary, or a
// Follower that is further behind than the log reaches, ends the stream; the next one compares. Nobody waits for a slow
// Follower, and it costs the primary no more memory than the log.
//
// # What is copied
//
// Id, owner, generation, metadata and data; PrimaryModifyIndex is the primary's index. Status and version are each
// datacenter's own, but writing a status in the primary gives the record, and so its copies, a new index. A copy goes when
// the primary's record does: not with its owner, and whatever its finalizers. What belongs to a copy in the secondary alone
// goes with the copy. A record that becomes one of another group version stays the same record.
//
// Of types that a secondary's version of wanfed does not know, nothing is sent to it; that is logged once and counted
// (TypeStatus.Unknown). Of types that the primary's server does not know, the copies stay as they are. Records of a
// federated type that a secondary has of its own, because the type was not federated before or the datacenter was the
// primary, give way: to the primary's of that name, else they are deleted. That is logged, with their names, before it is done.
// A Follower stores nothing but records of federated types, whatever the primary sends; the rest is counted.
//
// # Which datacenter is the primary
//
// PrimaryManager says. It is a record of each datacenter's own store, whose federated records it has, and not what one server is
// configured with: its leader changes it (PrimaryManager.Lead) when all living servers of the datacenter are configured with another primary.
// The old primary hands over, and writes nothing from then on; the new one follows it until it has the last of its records, or until
// it has not answered for 20 s, and makes the copies its own; others follow the old one until the new one can be followed. Only who owns
// its records can be followed, so that no two follow each other. Indexes of two primaries have nothing to do with each other: the first
// comparison with another one trusts none.
//
// # Pace
//
// The network's round trips set it. After an error both retry with back-off (100 ms to 3 s, with jitter), and at once when
// the way to the primary changed. AntiEntropy compares once a minute in any case, as a safety net.
//
// # Goroutines
//
// AntiEntropy.Run and PrimaryManager.Lead, which runs the Follower, belong under leadership and join all they start. Source.Run belongs to every server;
// Source.Follow runs in its call.
package replication
