// SPDX-License-Identifier: MPL-2.0

// Package demo runs a whole federation on one machine, verifies that it works,
// and prints its state.
//
//	err := demo.Run(ctx, demo.Config{Once: true, Out: os.Stdout, Err: os.Stderr})
//
// Servers and gateways are processes of the wanfed binary, with certificates of
// their own CA, on loopback addresses. Each byte between datacenters goes
// through two gateways. The demo needs no root rights. Package
// internal/subprocess starts and stops the processes.
//
// # Flow
//
// The servers of the primary start first, then its gateway, then all
// secondaries at the same time. A secondary needs the WAN address of the
// primary's gateway. It starts its servers and then its gateway. The system
// chooses the ports, and the demo reads them from the output of the processes.
// In a datacenter with several servers, the demo chooses free ports, because
// these servers need each other's addresses before they start.
//
// The demo polls each server as soon as the server listens. The server must
//
//  1. list every server as alive in the WAN pool,
//  2. have the federation state of every datacenter, with the address of its
//     gateway,
//  3. get the leader and the members from every other datacenter.
//
// The reported times of these steps begin with the start of the first process.
// After the last step the demo prints tables, or a [Report] as JSON. A demo that
// prints tables and does not end by itself then has a sync daemon in the primary.
// Its task writes the gateways of all datacenters to a file. Until its context
// ends, the demo reports each process that ends, because the user may kill
// processes, and each run of the task. With Config.Once it ends by itself, which makes it an end-to-end
// test.
//
// # Goroutines
//
// One goroutine runs for each datacenter while it starts, for each server until
// it has completed all steps, and for each process until the demo ends. Before
// Run returns, it joins all goroutines, stops the processes (it kills them
// after 10 s) and removes the directory. If the demo itself is killed, stdin of
// the processes ends and they stop.
//
// # Limits
//
// Every datacenter accepts writes from the operators of all other datacenters,
// which a real federation need not permit. All addresses are on 127.0.0.1, so
// servers could reach each other without gateways. Tests in network namespaces
// verify that servers use the gateways. Each datacenter has one gateway.
package demo
