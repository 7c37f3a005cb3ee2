// SPDX-License-Identifier: MPL-2.0

// Package keyring distributes the gossip keys of a federation, so that all
// servers have the same keyring. It serves the KeyringService, through which
// operators change and list keys. The keyring itself, its file and its
// encryption are in package gossip.
//
// # Flow
//
// Only the leader of the primary makes new keyrings, one after another. Before
// each change, the leader collects the newest keyring of all servers that it
// can reach.
// It refuses a change that would leave a server without a common key. Every
// other server accepts a keyring that is newer than its own.
//
// Keyrings are sent by gRPC over the TLS connections of the servers, not by
// gossip, because a server with outdated keys receives no gossip. A keyring is
// encrypted with its own keys, so a certificate alone does not suffice to read
// it.
//
// [Service.Run] compares the keyring of this server with other servers:
//
//   - with all servers at the start,
//   - with a server or datacenter that becomes reachable again,
//   - with the servers of this datacenter when the local keyring changes,
//   - with one random server every 30 seconds.
//
// A failed comparison is repeated with backoff.
//
// # Example
//
//	keys, err := keyring.New(keyring.Config{DC: "dc1", Node: "srv1", Store: store, ...})
//	pb.RegisterKeyringServiceServer(registrar, keys)
//	err = keys.Run(ctx)
//
// # Goroutines and limits
//
// Run starts at most 16 comparisons at a time and joins them. A comparison with
// a server of this datacenter takes at most 3 seconds. A comparison with another
// datacenter takes at most 5 seconds, because that datacenter first collects the
// keyrings of its servers.
package keyring
