// SPDX-License-Identifier: MPL-2.0

// Package operator serves the OperatorService. With this gRPC service,
// operators list and change the members of the Raft group of a datacenter, and
// save and restore snapshots. The package also adds and removes members by
// itself. It records which running servers operators removed, because it must
// not add these servers again at once.
//
// # Membership
//
// The leader runs [Service.RunMembership], which applies these rules:
//
//   - A server of the LAN pool that is not in the group is added without a vote.
//     The server gets a vote once it has been alive and up to date for 10
//     seconds.
//   - A voter that starts with a new data directory does not vote (see
//     raftstore.Store.Admitted). It is removed if the other voters have a quorum,
//     and is then added without a vote.
//   - A server that has been down for [Config.DeadAfter] is removed. A voter is
//     removed only if a quorum remains. The quorum must also be a majority of
//     the number of servers that the datacenter was set up for.
//   - A server that left cleanly stays in the group until the LAN pool removes
//     the server after 72 hours.
//   - A running server that an operator removed is not added again for 10
//     minutes.
//
// # Snapshots
//
// At most 2 snapshots are saved at a time. Each save keeps one state of the
// store in memory until the snapshot is sent. A restore replaces all resources
// of the datacenter. At most one restore runs at a time.
//
// # Comparison of stores
//
// The leader runs [Service.RunCheckpoints], and every server runs
// [Service.RunComparison]. A server whose store differs from that of a majority
// replaces its store with a snapshot of the leader.
//
// # Example
//
//	ops := operator.New(operator.Config{DC: "dc1", Node: "srv1", Store: store, LAN: lan, ...})
//	pb.RegisterOperatorServiceServer(registrar, ops)
//	err := store.RunWhileLeader(ctx, ops.RunMembership)
//
// The authorization rules of package rpc admit only operators of the same
// datacenter, and forward calls to the leader where that is required. Digest is
// for servers of the datacenter, SaveSnapshot and ListPeers for both.
package operator
