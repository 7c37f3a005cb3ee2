// SPDX-License-Identifier: MPL-2.0

// Package federation is what one datacenter knows of the others: their federation states, the members of the WAN pool, the
// address book, and how to join.
//
// It leaves to others: moving states between datacenters (package replication), dialing (package wanfed reads the book this
// package writes), and the local catalog of gateways (package catalog).
//
// # Parts
//
//   - State records. Register adds the federated type federation/v1/FederationState. Same says whether two states agree
//     in all but UpdatedAt and indexes. Service answers Apply, Get, List and ListMeshGateways over gRPC.
//   - AddressBook computes, in one place, how every datacenter is reached, from federation states, the own gateways, the
//     configured primary gateways and the servers of the LAN pool. It publishes two immutable values: wanfed.Routes for this
//     server's dialer and a GatewaySnapshot for its gateways. What follows from the facts of one datacenter is an entry, and
//     those that did not change are taken over.
//   - Hinter tells the own gateways' addresses to the WAN pool, in this server's tags: for when the record cannot travel.
//   - Joiner keeps this server in the WAN pool: it contacts every known datacenter of which no member is alive, and every
//     server of its own datacenter that is missing there. Who is new is left to gossip for some seconds, and exchanges of
//     state are one after another, each only if still needed: else a thousand datacenters would all exchange with all.
//     It also exchanges state with datacenters that could not be reached for a while (CatchUp).
//   - Admit refuses members whose name is not <node>.<dc>, or whose primary is another.
//
// # Flow of a secondary's first seconds
//
// The configured primary gateways are in the book at once. The Joiner dials any server of the primary through them, or
// through an own gateway as soon as one is registered. Members arrive, replication brings states, the states enter the book,
// and the Joiner sees which datacenters are still missing.
//
// # Order of hops
//
// Own gateways (LAN address), then the other datacenter's gateways (WAN address): those its servers tell in the WAN pool,
// those of its record, healthy before critical ones, for the primary the configured addresses, and last the addresses it had
// earlier. Which of them are critical, or known from earlier only, is their rank. The dialer's mode says whether the own or the
// other datacenter's come first, and what it has measured decides among equals. Origins tells where each is known from.
//
// Earlier addresses are on disk for 30 days after they were last named or worked, 16 of each datacenter. The 8 that worked last
// are not pushed out by newer ones that never did, and the one that worked last stays for good. The file is written whole: at the
// end, and else no more often than each 10 ms for each datacenter, or each 10 s. A server that is killed may lose what it heard last.
//
// # Goroutines
//
// AddressBook.Run and Joiner.Run each join what they start. Both wait for changes of the store, the pools and the book; the
// AddressBook also notes every minute which addresses worked, and the Joiner retries with back-off (200 ms to 3 s, with jitter).
package federation
