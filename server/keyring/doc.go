// SPDX-License-Identifier: MPL-2.0

// Package keyring distributes the gossip keys of a federation. All servers then
// have the same keyring. Operators change and list keys with the
// KeyringService, a gRPC service. Package gossip has the keyring itself, its
// file and its encryption.
//
// # Flow
//
// Only the leader of the primary makes new keyrings, one after another. Before
// each change, the leader collects the keyrings of all reachable servers. It
// refuses a change that would leave a server without a common key. Every other
// server accepts a keyring that is newer than its own keyring.
//
// Servers exchange keyrings by gRPC over their TLS connections, not by gossip,
// because a server with outdated keys receives no gossip. Before a server sends
// its keyring, it encrypts the keyring once with each key that the keyring
// contains. A receiver that already has one of these keys can therefore decrypt
// the keyring. A peer that has only a certificate cannot decrypt the keyring.
//
// [Service.Run] exchanges keyrings with other servers:
//
//   - with the primary and all servers of this datacenter at the start,
//   - with one of these that becomes reachable again,
//   - with another datacenter that is new or reachable again and that gossip
//     does not reach within 10 seconds,
//   - with the servers of this datacenter when the local keyring changes,
//   - with one random server every 30 seconds.
//
// A failed exchange is repeated with backoff.
//
// # Example
//
//	keys := keyring.New(keyring.Config{DC: "dc1", Node: "srv1", Store: store, ...})
//	pb.RegisterKeyringServiceServer(registrar, keys)
//	err := keys.Run(ctx)
//
// # Goroutines and limits
//
// Run starts at most 16 exchanges at a time and joins them. An exchange takes
// at most 3 seconds with a server of this datacenter, and at most 5 seconds
// with another datacenter.
package keyring
