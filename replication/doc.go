// SPDX-License-Identifier: MPL-2.0

// Package replication moves records between datacenters: each datacenter's own federation state upward to the primary
// (AntiEntropy), and all federated records downward to every secondary (Source in the primary, Follower in a secondary).
//
// It leaves to others: what the records mean (package federation), how the far side is reached (the functions in the
// configs), and who may call (package server).
//
// # Upward
//
// AntiEntropy runs on each datacenter's leader. After every change of the catalog's gateways, or of the local copy of the own
// state, it compares the two and, when they differ, has the wanted state applied in the primary. Nothing is queued: it
// always sends what is true now. A state that somebody deleted in the primary comes back, because its loss is replicated.
//
// # Downward
//
// A Follower sends digests (name, uid, index) of what it holds. The Source answers with the difference, in chunks, and then
// with every change as it is committed. The Follower commits all that has arrived in one Raft entry. A broken stream costs
// one exchange of digests; nothing is sent twice, and no position needs to be remembered.
//
// # Pace
//
// The network's round trips set it. After an error both retry with back-off (100 ms to 3 s, with jitter), and at once when
// the way to the primary changed. AntiEntropy compares once a minute in any case, as a safety net.
//
// # Goroutines
//
// AntiEntropy.Run and Follower.Run belong under leadership and join all they start. Source.Follow runs in its call.
package replication
