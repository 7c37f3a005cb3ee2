// SPDX-License-Identifier: MPL-2.0

// Package catalog has the nodes, services and checks of one datacenter, and the
// heartbeats of its gateways. Each node, service and check is a resource, which
// package resource stores.
//
// A Writer writes a Registration in one commit. A View reads the catalog as
// Snapshots of one moment. Gateways registers gateways. A TTLMonitor keeps
// deadlines in the leader's memory. Package httpapi serves the catalog by HTTP.
// Packages federation and replication send the gateways to other datacenters.
// Package server checks certificates.
//
// # Flow
//
// A gateway calls Gateways.Register every two seconds. The first call, and each
// call with a new address, writes three resources in one commit: a Node, a
// Service that the node owns, and a Check that the service owns. Every other
// call only moves a deadline in memory, so a heartbeat costs no disk write.
// When the deadline passes, the leader writes the check as critical. The next
// heartbeat writes the check as passing. Deregister deletes the node and the
// resources that the node owns. After ReapAfter without a heartbeat, the leader
// deletes the node.
//
// A program registers a service with a check that has a TTL, and sends updates
// of the check. TTLMonitor.Update applies an update. An update that changes
// neither status nor output only moves a deadline. When the deadline passes,
// the leader writes the check as critical. A service that is critical for
// longer than its limit is deleted.
//
// A check with a Probe is run by the server on whose node it is registered: see
// package server/checks. CheckProbeAddress decides where a server connects.
//
// A MergedView adds the servers of the LAN pool to the snapshots of a View. They
// are not stored. Registrations of servers and gateways by other callers are
// refused.
//
// # Example
//
//	view := catalog.NewView(backend)
//	writer := catalog.NewWriter(service, view)
//	err := writer.Register(ctx, catalog.Registration{
//		Node:    &pb.Node{Node: "db1", Address: "10.0.0.9"},
//		Service: &pb.Service{Node: "db1", Id: "postgres", Service: "postgres", Port: 5432},
//	})
//	...
//	s, err := view.At(ctx, resource.Strong)
//	fmt.Println(s.Node("db1").Service("postgres").Port)
//
// # Names
//
// The resource of a node has the node's name. The resource of a service or
// check is named node/id, since an id is unique on its node only. "/" and "%"
// in the node's name are escaped. The service and check of a gateway have the
// node's name alone. The data of a resource holds the authoritative names and
// ids.
//
// # Leadership
//
// TTLMonitor.Run runs while the server leads, in two goroutines. A new leader
// gives every known gateway and check one full TTL, so a change of leader makes
// no gateway critical. Register, Deregister and Update run in the goroutines of
// their callers. They fail with resource.ErrNotLeader while Run does not run.
// View.Wait uses three goroutines while it waits.
//
// # Limits
//
// HeartbeatInterval, HeartbeatTTL and ReapAfter are constants. MaxOutput and
// the other limits of a resource are in validate.go.
package catalog
