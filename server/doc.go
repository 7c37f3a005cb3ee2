// SPDX-License-Identifier: MPL-2.0

// Package server assembles one datacenter server and owns its lifecycle.
//
//	err := server.Run(ctx, server.Config{
//		DC: "dc1", Node: "srv1", DataDir: "/var/lib/wanfed",
//		CAFile: "ca.pem", CertFile: "server.pem", KeyFile: "server-key.pem",
//	})
//
// Run creates the components of a server, starts them in two groups, and joins
// them. It blocks until ctx ends or a component fails.
//
// # Components
//
// The lower group is the network: the TLS port (wanfed.Mux), the tunnel,
// reloading of certificates, and gRPC connections to other servers (package
// dcrpc).
//
// The upper group uses the lower group. It contains both gossip pools, the
// address book, the joiner, Raft membership, the work of the leader, the gRPC
// edge (package server/rpc) and the HTTP API (package server/httpapi).
//
// When ctx ends, Run joins the upper group first, because the server needs the
// network to leave the pools. Then Run transfers leadership, closes the store
// and ends the lower group. Open requests have two seconds to finish.
//
// # Work of the leader
//
// The server that leads its datacenter
//
//   - checks the heartbeats of gateways and the TTL of health checks,
//   - writes the federation state of its datacenter in the primary,
//   - replicates the resources of the primary, in a secondary,
//   - adds servers of the LAN pool to the Raft group, gives a vote to stable
//     servers, and removes dead servers while a quorum remains,
//   - looks for a second primary.
//
// This work is joined before the next leadership begins. It is restarted after
// the restore of a snapshot.
//
// # Requests to other datacenters
//
// A request with "?dc=" is forwarded to any server of that datacenter. A read
// is sent with the identity of this server. A read is repeated over another
// path if its path fails. A write is sent once, with the identity of the
// operator. The other datacenter accepts the write only if its [Config] lists
// this datacenter in AllowRemoteWritesFrom.
//
// # Data directory
//
//	<data-dir>/raft/           log, snapshots, and the name of their node
//	<data-dir>/node-id         id of this server, created at the first start
//	<data-dir>/datacenter      name of the datacenter of this directory
//	<data-dir>/keyring.json    gossip keys, if gossip is encrypted; mode 0600
//	<data-dir>/addresses.json  last known addresses of gateways
//	<data-dir>/servers.json    last known addresses of servers of this datacenter
//
// # Limits
//
// A datacenter has 1, 3 or 5 servers when it is formed. A data directory
// belongs to one process. Run reads the Config once. Only the certificate files
// are read again when they change, and [Config.Updates] delivers changed
// settings.
package server
