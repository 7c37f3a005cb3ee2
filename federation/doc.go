// SPDX-License-Identifier: MPL-2.0

// Package federation contains what one datacenter knows of the others: their
// federation states, the members of the WAN pool, the address book, and how to
// join.
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
//     GatewaySnapshot for the local gateways. Datacenters whose inputs did not
//     change are not computed again.
//   - GatewayTagger publishes the addresses of the local gateways in the WAN
//     pool, as a tag of this server, for when the federation state cannot travel.
//   - Joiner keeps this server in the WAN pool. It contacts every known
//     datacenter without an alive member, and every local server that is missing
//     there. A new datacenter is left to gossip for some seconds. State exchanges
//     run one after another, each only if still needed. Otherwise a thousand
//     datacenters would all exchange with each other. RunResync exchanges state
//     with datacenters that were unreachable.
//   - Admit rejects members whose name is not <node>.<dc>, or that name another
//     primary. PrimaryConflicts records the latter.
//
// # Start of a secondary
//
// The configured primary gateways are in the address book at once. The Joiner
// dials any server of the primary through them, or through a local gateway as
// soon as one is registered. Members arrive by gossip and states by replication.
// The states enter the address book, and the Joiner contacts the datacenters that
// are still missing.
//
// # Order of paths
//
// Paths through local gateways come first, by their LAN addresses. Then follow
// the WAN addresses of the other datacenter's gateways: those in the tag of its
// servers, those of its federation state, healthy before critical ones, the
// configured addresses for the primary, and cached addresses. Critical and cached
// paths have a rank. The dialer's mode decides between local and remote gateways,
// and its measurements decide among equals. Origins returns the sources of each
// address.
//
// The cache on disk keeps addresses for 30 days after they were last named or
// last worked, 16 of each datacenter. Newer addresses that never worked do not
// evict the 8 that worked last. The address that worked last is kept
// indefinitely. The file is written at the end, and otherwise at most every 10 ms
// per datacenter and at least every 10 s. A server that is killed may lose the
// latest changes.
//
// # Goroutines
//
// AddressBookUpdater.Run and Joiner.Run join what they start. Both wait for
// changes of the store, the pools and the address book. The updater also records
// every minute which addresses worked. The Joiner retries with backoff (200 ms to
// 3 s, with jitter).
package federation
