// SPDX-License-Identifier: MPL-2.0

// Package server assembles one datacenter server and owns its lifecycle. There is no Server type: Run builds the parts, gives
// each what it needs, starts them in two groups and joins them.
//
// # What runs
//
// The lower group carries bytes: the TLS port (wanfed.Mux), the tunnel, certificate reloading, gRPC client connections. The
// upper group is what people and peers see: both gossip pools, the address book, the joiner, Raft membership, the work of
// the leader, gRPC and HTTP. At the end the upper group goes first, so that leaving the pools still has a network; then
// Raft closes; then the lower group ends.
//
// # The leader's work
//
// While this server leads its datacenter it watches heartbeats of gateways and checks, keeps the own federation state true in the primary,
// follows the primary's records (in a secondary), and decides who is in the Raft group (operator_members.go): servers of the
// LAN pool are added, and have a vote when they are stable; dead ones are removed, if a quorum remains. All of it is joined
// before the next leadership begins, and begins anew after the restore of a snapshot.
//
// # Who may call what
//
// Every gRPC method has a rule in rules.go: which roles, whether only from this datacenter, whether it belongs to the leader.
// A call for the leader that arrives at a follower is forwarded, with the caller's identity; that identity is believed only
// from servers of this datacenter. A method without a rule is refused.
//
// # Questions to other datacenters
//
// "?dc=" of the HTTP API is asked of a server there. Reads that do not block share one stream to each datacenter (exchange.go), which
// takes about half the time of calls; a question that finds no stream is a call (far.go). Those who ask the same before it is sent share
// the question, and when many are away the next ones gather, for a millisecond at most (exchange_stream.go). One goroutine answers those
// of a message in turn, unless that takes long (exchange_serve.go). Who asks a follower more
// than 100 times a second for what must be fresh goes over to the leader that it names (exchange_lead.go): the session moves. While an
// answer is late the connection is tested, and another way opened; when it is dead, its stream ends, and what was asked over it is asked
// by calls, which go the other way. Writes are calls that are made once (vouch.go).
//
// # Gossip keys
//
// Both pools encrypt with one ring of keys (package gossip). Only the primary's leader makes new rings, for operators, and hands
// them to all servers by gRPC; a server that was away compares its ring with others when it can reach them and takes the
// newer one, if it has a key of it (keyring.go, keyring_sync.go; docs/gossip-keys.md).
//
// # The data directory
//
//	<data-dir>/raft/    log, snapshots, and the name of the node it belongs to
//	<data-dir>/node-id  this server's id, made at the first start
//	<data-dir>/datacenter  the datacenter it belongs to
//	<data-dir>/keyring.json  the gossip keys, if gossip is encrypted; mode 0600
//	<data-dir>/addresses.json  gateways' addresses that were ever known, for when all others have changed
package server
