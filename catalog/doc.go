// SPDX-License-Identifier: MPL-2.0

// Package catalog knows what runs in one datacenter: nodes, services and checks, each a resource, and the gateways among
// them with their heartbeats.
//
// A View reads it as Snapshots of one moment, a Writer writes entries in one commit each, Gateways and Reports keep deadlines in
// the leader's memory.
//
// It leaves to others: how resources are kept (package resource), how programs ask by HTTP (package httpapi), what other
// datacenters are told of the gateways (packages federation and replication), and who may call (package server checks
// certificates before it calls).
//
// # Flow
//
// A gateway calls Register every two seconds. The first call, and any that brings a new address, writes three resources in
// one Raft entry: a Node, a Service it owns, and a Check that the service owns. Every other call only moves a deadline in the
// leader's memory: a heartbeat costs no disk write. When the deadline passes, the leader writes the check "critical"; the
// next heartbeat writes it "passing". Deregister deletes the node, and with it the rest. A gateway that stayed silent for
// GoneAfter is deleted too.
//
// Programs register services with checks that have a TTL, and report them. Reports takes the reports: one that changes nothing
// moves a deadline. When it passes, the leader writes the check "critical"; a service that is critical for longer than it
// may be is deleted.
//
// # Names
//
// A node's resource has its name. A service's, and a check's, has the node's name, a slash and the id, since ids are unique on their
// node alone; "/" and "%" in the node's name are escaped. A gateway's have its node's name. Who is what stands in the data.
//
// # Leadership
//
// Heartbeats live in the leader's memory. A new leader gives every known gateway one full TTL before it believes in a loss,
// so that a change of leader is never seen as a dead gateway.
//
// # Goroutines
//
// Gateways.Run is one goroutine: a timer for the nearest deadline. Reports.Run is two: one more follows what is registered. They
// belong under leadership. Register, Deregister and Report run in their callers' goroutines and fail with resource.ErrNotLeader
// elsewhere. View.Wait starts three while it waits.
//
// # Limits
//
// Timings are constants: Interval 2 s, TTL 10 s, GoneAfter 72 h. A datacenter's gateways are few; List reads all of them.
package catalog
