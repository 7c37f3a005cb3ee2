// SPDX-License-Identifier: MPL-2.0

// Package remote carries requests between servers: it forwards requests to
// other datacenters, and serves those of other servers.
//
// # Flow
//
// A [Forwarder] names the caller in each request. A read goes to any server of
// the other datacenter, and is repeated over another path if its path fails. A
// write is sent once. The other datacenter decides by the named caller, who has
// no more rights there than package policy gives to a caller whose certificate
// cannot be verified.
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
