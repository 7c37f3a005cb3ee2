// SPDX-License-Identifier: MPL-2.0

// Package examples has programs for those who want the tunnel alone, without a control plane: memberlist and serf clusters
// whose nodes are in two datacenters and gossip through gateways. Each is one file that uses packages wanfed and tlsutil and
// nothing else of wanfed, with a README that runs it on one machine.
//
// What they show, in order: an identity from three files; a Node of it, with the gateways to other datacenters; memberlist's
// Config with the tunnel's Transport; and the Node told where the others of the own datacenter are, from membership events,
// so that a packet which reached one node is handed on to the one it is for.
//
// This package itself is only the tests: they build the programs, run the commands of both READMEs word for word, except for
// ports, and check that all nodes find each other, and that the programs pull in neither Raft nor wanfed's records.
//
//	go test ./examples
package examples
