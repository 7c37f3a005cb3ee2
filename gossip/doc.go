// SPDX-License-Identifier: MPL-2.0

// Package gossip runs one serf gossip pool as a component of a server: the LAN
// pool (servers of one datacenter) or the WAN pool (servers of all
// datacenters). It turns serf's callbacks into a member list that changes
// atomically, and serf's lifecycle into one Run.
//
//	pool, err := gossip.New(gossip.Config{
//		Kind: wanfed.PoolWAN, Name: "srv1.dc1", Transport: transport,
//		Advertise: addr, Logger: logger,
//	})
//	if err != nil {
//		return err
//	}
//	go pool.Run(ctx)
//	err = pool.Join(ctx, "srv1.dc2/10.0.0.1:8300")
//	changed := pool.Changed()
//	members := pool.Members()
//	<-changed // the list has changed since
//
// Package wanfed provides the transport. Package federation selects the members
// that the WAN pool joins, and package server those of the LAN pool. These two
// packages also define the tags of members.
//
// # Flow
//
// New checks the configuration. Run creates serf over the given transport and
// copies every membership event into the member list. When its context ends,
// Run leaves the pool, so that other members see "left" at once instead of
// "failed" later, and shuts serf down. Join waits until Run has created serf.
//
// A server that was killed may restart at another address while the other
// members still list it as alive at the old one. The pool detects this when a
// member reports the old address. It leaves under the old address and rejoins
// under its own (rejoin.go).
//
// # Keys
//
// With a KeyringStore, gossip is encrypted inside the connections that carry
// it. One keyring, stored on disk, serves both pools of a server, since their
// members are the same servers. A Keyring is a value with a version. Encrypt and
// Decrypt transfer it between servers that share a key. Package server/keyring
// serializes the changes of the keyring. The transport does not distinguish
// encrypted packets and streams from others.
//
// # Guarantees
//
//   - Members never blocks on the network. The channel of Changed is closed
//     after the new list is visible.
//   - Successive changes are published together. Two lists are at least 250 µs
//     per member apart, and at most 250 ms.
//   - Only authenticated servers can use the transport. Config.Admit may reject
//     a member, for example one that names another primary. A rejected member
//     stays out of the list, and the reason is logged.
//   - The tags of an admitted member are decoded again only after they change.
//     Each update of a member arrives about thirty times.
//
// # Goroutines
//
// Run joins its own goroutines. Serf and memberlist stop their goroutines at
// Shutdown without joining them. These goroutines hold no connection of wanfed,
// because the owner of the transport closes all connections.
package gossip
