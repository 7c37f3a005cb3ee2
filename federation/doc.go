// SPDX-License-Identifier: MPL-2.0

// Package federation maintains what one server knows about other datacenters:
// their federation states, the members of the WAN pool, and the address book,
// which lists the paths to each datacenter. It also joins the WAN pool.
// docs/how-it-works.md explains the terms.
//
//   - Register adds the federated type federation/v1/FederationState. Service
//     implements the gRPC service for federation states.
//   - AddressBookUpdater computes the address book. It publishes a
//     wanfed.AddressBook for the dialer of this server and a GatewaySnapshot
//     for the local gateways.
//   - RunGatewayTags publishes the addresses of the local gateways as a tag of
//     this server in the WAN pool. Other datacenters use the tag while they
//     cannot receive the federation state. A second tag has the gateways of other
//     datacenters to which the local gateways cannot connect.
//   - Joiner joins this server with the members of the WAN pool that it misses.
//   - Admit rejects WAN members with an invalid name or another primary.
//     PrimaryConflicts records members with another primary.
//   - KeepGroupID creates the id of the local Raft group. Claimant claims the
//     names of this server and its datacenter for that group. Claims, in the
//     primary, accepts one of several groups or servers with the same name.
//     Clones, in a secondary, finds servers of the primary that run twice.
//
// A server runs the components until its context ends:
//
//	u, err := federation.NewAddressBookUpdater(bookConfig)
//	if err != nil {
//		return err
//	}
//	j, err := federation.NewJoiner(joinerConfig)
//	if err != nil {
//		return err
//	}
//	g.Go(func() error { return u.Run(ctx) })
//	g.Go(func() error { return j.Run(ctx) })
//
// Package replication copies federation states between datacenters. Package
// wanfed dials the paths of the address book. Package catalog contains the
// local gateways.
//
// # Order of paths
//
// The address book lists the paths to a datacenter in this order:
//
//  1. paths through local gateways
//  2. addresses in the gateway tags of the datacenter's servers
//  3. addresses in its federation state, healthy gateways first
//  4. configured addresses, for the primary
//  5. cached addresses
//
// Paths through critical gateways and paths to cached addresses have a rank.
// The dialer selects by its mode, by rank and by measurements. Origins returns
// the sources of each address.
//
// # Address cache
//
// The cache on disk keeps up to 16 addresses of each datacenter. It evicts an
// address 30 days after a source last contained the address or a dial last
// succeeded. Newer addresses that never worked do not evict the 8 that worked
// last. The address that worked last is not evicted.
//
// The file is written when Run ends. Before that, two writes are at least 10 ms
// per datacenter and at most 10 s apart. A server that is killed may lose the
// latest changes.
//
// # Goroutines
//
// AddressBookUpdater.Run, Joiner.Run and Joiner.RunResync join the goroutines
// that they start.
package federation
