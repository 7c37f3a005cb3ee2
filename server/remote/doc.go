// SPDX-License-Identifier: MPL-2.0

// Package remote carries requests between servers: it forwards requests to
// other datacenters, and serves those of other servers.
//
// # Flow
//
// A [Forwarder] sends a read with the identity of this server, to any server of
// the other datacenter. The read is repeated over another path if its path
// fails. The Forwarder sends a write once, on behalf of the caller, who must be
// an operator of this datacenter. The other datacenter accepts the write only
// if its AllowRemoteWritesFrom lists this datacenter.
//
// A [Service] is the other end: it calls the HTTP API of this server with a
// forwarded request. Servers of the same datacenter call it to compare their
// names and their Raft group, see package server/raftgroup.
//
// # Example
//
//	forwarder := remote.New(remote.Config{DC: "dc1", Book: book, Calls: calls, ...})
//	resp, err := forwarder.Query(ctx, "dc2", &pb.QueryRequest{Path: "/v1/status/leader"}, time.Minute)
//
// # Limits
//
// A datacenter that is not in the address book is refused at once. For one
// minute after a demotion, callers of other datacenters get an error that
// requests a retry, because they may treat this datacenter as the primary.
package remote
