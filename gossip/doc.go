// SPDX-License-Identifier: MPL-2.0

// Package gossip runs one serf gossip pool as a component of a server: the LAN
// pool (servers of one datacenter) or the WAN pool (servers of all
// datacenters). Pool replaces the callbacks of serf by a member list, and the
// lifecycle of serf by one Run.
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
// # Members
//
// Run copies every membership event of serf into the member list. Several
// changes are published together: two lists are at least 250 µs per member
// apart, and at most 250 ms. The channel of Changed is closed after the new
// list is visible. Members never blocks on the network.
//
// Only authenticated servers can use the transport. Config.Admit may reject a
// member. A rejected member is not in the list, and the reason is logged.
//
// # Leave and rejoin
//
// When its context ends, Run leaves the pool and shuts serf down. Other members
// then list the server as left instead of failed.
//
// A server that was killed may restart at another address while other members
// still list it as alive at the old address. The pool detects this when a
// member reports the old address. It announces its departure from the old
// address and then rejoins under its own address (rejoin.go).
//
// # Keys
//
// With a KeyringStore, gossip is encrypted inside the TLS connections that
// carry it. One keyring on disk serves both pools of a server. A Keyring is a
// value with a version. Servers that share a key exchange keyrings with Encrypt
// and Decrypt. Package server/keyring serializes the changes of the keyring.
//
// # Goroutines
//
// Run joins its own goroutines. Serf and memberlist stop their goroutines at
// Shutdown without joining them. These goroutines hold no connection, because
// the owner of the transport closes all connections.
package gossip
