// SPDX-License-Identifier: MPL-2.0

// Package examples contains programs that use the tunnel of package wanfed
// without a control plane: memberlist and serf clusters whose nodes are in two
// datacenters and gossip through gateways. Each program is one file that
// imports only packages wanfed and tlsutil of this module. A README runs the
// program on one machine.
//
// Each program shows four steps: load an identity from three files, create a
// wanfed.Node with the gateways to other datacenters, use its Transport in the
// Config of memberlist, and pass the addresses of the members to the Node. The
// Node needs the addresses to relay packets to the members of its datacenter.
//
// Directory controller has a program of another kind: it runs a controller
// against a server, and has its own tests.
//
// This package itself contains only tests. They build the programs, run the
// commands of both READMEs with other ports, and check that all nodes find each
// other. They also check that the programs import neither Raft nor the control
// plane.
//
//	go test ./examples
package examples
