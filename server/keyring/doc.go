// SPDX-License-Identifier: MPL-2.0

// Package keyring distributes the gossip keys of a federation, so that all
// servers have the same keyring. It serves the KeyringService, through which
// operators change and list keys. The keyring itself, its file and its
// encryption are in package gossip.
//
// # Flow
//
// Only the leader of the primary makes new keyrings, one after another. Before
// it does, it collects the newest keyring of all servers that it can reach. It
// refuses a change that would leave a server without a common key. Every other
// server accepts a keyring that is newer than its own.
//
// Keyrings travel by gRPC over the TLS connections of the servers, not by
// gossip: a server with outdated keys receives no gossip, and must be reachable
// all the same. A keyring is encrypted under its own keys, so that a
// certificate alone does not reveal it.
//
// [Service.Run] compares keyrings with other servers: with all at the start,
// with a server or datacenter when it becomes reachable again, with those of
// this datacenter when the local keyring changes, and every 30 seconds with one
// at random. A failed comparison is repeated with a backoff.
//
// # Example
//
//	keys, err := keyring.New(keyring.Config{DC: "dc1", Node: "srv1", Store: store, ...})
//	pb.RegisterKeyringServiceServer(registrar, keys)
//	err = keys.Run(ctx)
//
// # Goroutines and limits
//
// Run starts at most 16 comparisons at a time and joins them. A comparison
// takes at most 3 seconds with a server of this datacenter, and 5 seconds with
// another datacenter, which collects the keyrings of its own servers in that
// time.
package keyring
