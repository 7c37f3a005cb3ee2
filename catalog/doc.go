// SPDX-License-Identifier: MPL-2.0

// Package catalog has the nodes, services and checks of one datacenter. Each of
// them is a resource. The gateways of the datacenter are in the catalog too,
// with their heartbeats.
//
// A View reads the catalog as Snapshots of one moment. A Writer writes a
// Registration in one commit. Gateways and TTLMonitor keep deadlines in the
// leader's memory.
//
// Package resource stores the resources. Package httpapi serves the catalog by
// HTTP. Packages federation and replication send the gateways to other
// datacenters. Package server checks certificates.
//
// # Flow
//
// A gateway calls Gateways.Register every two seconds. The first call, and each
// one with a new address, writes three resources in one commit: a Node, a
// Service that the node owns, and a Check that the service owns. Every other
// call only moves a deadline in memory, so a heartbeat costs no disk write.
// When the deadline passes, the leader writes the check as critical. The next
// heartbeat writes the check as passing. Deregister deletes the node and the
// resources that it owns. The leader does the same after ReapAfter without a
// heartbeat.
//
// Programs register services with checks that have a TTL, and send updates of
// these checks. TTLMonitor.Update applies an update. An update that changes
// neither status nor output only moves a deadline. When it passes, the leader
// writes the check as critical. A service that is critical for longer than its
// limit is deleted.
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
// A new leader gives every known gateway and check one full TTL, so a change of
// leader makes no gateway critical.
//
// # Goroutines
//
// Gateways.Run and TTLMonitor.Run run while the server leads. Gateways.Run uses
// one goroutine, TTLMonitor.Run two. Register, Deregister and Update run in the
// goroutines of their callers, and fail with resource.ErrNotLeader while Run is
// not running. View.Wait uses three goroutines while it waits.
//
// # Limits
//
// HeartbeatInterval, HeartbeatTTL and ReapAfter are constants. MaxOutput and
// the other limits of a resource are in validate.go.
package catalog
