// SPDX-License-Identifier: MPL-2.0

// Package federation maintains the information of one datacenter about the
// other datacenters: their federation states, the members of the WAN pool, and
// the address book. It also joins the WAN pool.
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
// Package replication copies states between datacenters. Package wanfed dials
// the paths of the address book. Package catalog contains the local gateways.
//
// # Parts
//
//   - Register adds the federated type federation/v1/FederationState. Service
//     implements Apply, Get, List and ListMeshGateways over gRPC.
//   - AddressBookUpdater computes the paths to every datacenter from federation
//     states, the local gateways, the configured primary gateways and the WAN
//     pool. It publishes a wanfed.AddressBook for this server's dialer and a
//     GatewaySnapshot for the local gateways. It computes only the paths of
//     datacenters whose inputs changed.
//   - GatewayTagger publishes the addresses of the local gateways as a tag of
//     this server in the WAN pool. Other datacenters need the tag while they
//     cannot receive the federation state.
//   - Joiner keeps this server in the WAN pool. It contacts every datacenter of
//     the address book that has no alive member, and every local server that is
//     missing in the pool. It contacts a new datacenter only if gossip does not
//     announce its members within some seconds. State exchanges run one after
//     another. An exchange is skipped if an earlier one made it unnecessary, so
//     a thousand datacenters do not all exchange state with each other.
//     RunResync exchanges state with datacenters that were unreachable.
//   - Admit rejects members whose name is not <node>.<dc>, and members that are
//     configured with another primary. PrimaryConflicts records the members with
//     another primary.
//
// # Start of a secondary
//
// The address book contains the configured primary gateways from the start. The
// Joiner dials any server of the primary through them, or through a local gateway
// once one is registered. The server then receives members by gossip and
// federation states by replication. The states enter the address book, and the
// Joiner contacts the datacenters that have no alive member yet.
//
// # Order of paths
//
// The paths to a datacenter are in this order:
//
//  1. paths through local gateways, by their LAN addresses
//  2. WAN addresses in the tags of the datacenter's servers
//  3. WAN addresses in its federation state, healthy gateways first
//  4. configured addresses, for the primary
//  5. cached addresses
//
// Critical and cached paths have a rank. The dialer's mode decides between local
// and remote gateways. Its measurements decide among paths of equal rank. Origins
// returns the sources of each address.
//
// The cache on disk keeps up to 16 addresses of each datacenter. It keeps an
// address for 30 days after a source last contained it or a dial to it last
// succeeded. Newer addresses that never worked do not evict the 8 that worked
// last. The address that worked last is kept indefinitely. The file is written
// when Run ends. Otherwise the interval between two writes is at least 10 ms per
// datacenter and at most 10 s. A server that is killed may lose the latest
// changes.
//
// # Goroutines
//
// AddressBookUpdater.Run and Joiner.Run join the goroutines that they start.
// Both wait for changes of the store, the pools and the address book. Once a
// minute, the updater also records the addresses of successful dials. The
// Joiner retries with backoff (200 ms to 3 s, with jitter).
package federation
