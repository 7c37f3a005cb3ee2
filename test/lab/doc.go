// SPDX-License-Identifier: MPL-2.0

// Package lab builds datacenters out of network namespaces and runs real
// servers and gateways in them, for tests.
//
// Every server and every gateway has its own namespace. The namespaces of one
// datacenter share a bridge. All datacenters use the SAME subnet and addresses.
// That works because no IP packet is routed between them. Only gateways have a
// second interface, in the WAN.
//
//	srv1 10.10.0.11 ─┐                                                   ┌─ 10.10.0.11 srv1
//	srv2 10.10.0.12 ─┤ bridge dc1 ─ gw1 10.10.0.101 ▒ WAN bridge ▒ 10.10.0.101 gw1 ─ bridge dc2
//	srv3 10.10.0.13 ─┘              198.18.1.1                 198.18.2.1
//
// The WAN uses the addresses of RFC 2544, which are never routed on the
// Internet. A Capture reads every frame of the WAN bridge.
//
// NewWAN replaces the bridge by an emulated WAN (package wan) with delay and
// loss. Its links can be cut in one direction or both while processes run.
// Lab.Capture reads its packets as well.
//
// A sync daemon runs in the namespace of a server, or in its own one.
//
// Faults of nodes: Kill, Stop, Suspend (SIGSTOP), CutWAN, BlackHole (every
// packet including the LAN, by nft), ReAddress, and a StandIn that listens in
// place of a gateway and mistreats connections.
//
// The package needs Linux, root and the ip command. Otherwise New skips the
// test with one line that names what is missing. Names of namespaces contain
// the process id, so several runs do not collide. Everything is deleted when
// the test ends.
package lab
