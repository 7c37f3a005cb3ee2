// SPDX-License-Identifier: MPL-2.0

// Package examples contains programs that use the tunnel without a control plane:
// memberlist and serf clusters whose nodes are in two datacenters and gossip
// through gateways. Each is one file that imports only packages wanfed and tlsutil
// of this module. Its README runs it on one machine.
//
// The programs show, in this order: an identity from three files; a wanfed.Node
// with the gateways to other datacenters; memberlist's Config with the tunnel's
// Transport; and membership events that give the Node the addresses of the local
// members, so that it can relay packets to them.
//
// This package itself contains only tests. They build the programs, run the
// commands of both READMEs word for word except for ports, and check that all
// nodes find each other. They also check that the programs import neither Raft nor
// the control plane.
//
//	go test ./examples
package examples
