// SPDX-License-Identifier: MPL-2.0

// Package lab builds datacenters out of network namespaces and runs real servers and gateways in them, for tests.
//
// Every server and every gateway has a namespace of its own. Those of one datacenter share a bridge; all datacenters may use
// the SAME subnet and addresses, since no route leads from one to another. Only gateways have a second leg, in the WAN.
// Nothing forwards IP packets.
//
//	srv1 10.10.0.11 ─┐                                                   ┌─ 10.10.0.11 srv1
//	srv2 10.10.0.12 ─┤ bridge dc1 ─ gw1 10.10.0.101 ▒ WAN bridge ▒ 10.10.0.101 gw1 ─ bridge dc2
//	srv3 10.10.0.13 ─┘              198.18.1.1                 198.18.2.1
//
// The WAN's addresses are those of RFC 2544, never routed on the Internet. A Capture reads every frame of the WAN bridge.
//
// NewWAN puts an emulated WAN (package wan) in the bridge's place: with delay and loss, and with links that can be cut in one
// direction or both while processes run. Lab.Capture reads all of it too.
//
// What can be done to nodes: Kill, Stop, Suspend (SIGSTOP), CutWAN, BlackHole (every packet, LAN too, by nft), ReAddress, and
// a StandIn that listens in a gateway's place and treats connections badly.
//
// It needs Linux, root and the ip command; New skips the test, with one line that says what is missing, where it cannot run.
// Names of namespaces carry the process id, so that several runs do not meet; everything is deleted when the test ends.
package lab
