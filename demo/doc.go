// SPDX-License-Identifier: MPL-2.0

// Package demo runs a whole federation on one machine, verifies that it works,
// and prints its state.
//
//	err := demo.Run(ctx, demo.Config{Once: true, Out: os.Stdout, Err: os.Stderr})
//
// Servers and gateways are processes of the wanfed binary, with certificates of
// their own CA, on loopback addresses. Each byte between datacenters goes through
// two gateways. The demo needs neither root nor another program. Package
// internal/subprocess starts and stops the processes.
//
// # Flow
//
// The servers of the primary start first, then its gateway, whose WAN address the
// secondaries need. Then all secondaries start at the same time. Each starts
// its servers and then its gateway. The system chooses the ports, and the demo
// reads them from the output of the processes. In datacenters with several
// servers, the servers need each other's addresses before they start. Only
// these servers get ports that were free just before.
//
// The demo polls each server as soon as the server listens. The server must
//
//  1. list every server as alive in the WAN pool,
//  2. have the federation state of every datacenter, with the real address of its
//     gateway,
//  3. get the leader and the members from every other datacenter.
//
// The reported times of these steps begin with the first process. Then the demo
// prints tables, or a [Report] as JSON. It follows the processes, which the user
// may kill, until its context ends. With Config.Once it ends by itself, which makes
// it an end-to-end test.
//
// # Goroutines
//
// There is one goroutine for each datacenter while it starts, one for each server
// while it is watched, and one for each process while it is followed. Before Run
// returns, it joins them all, stops the processes (it kills them after 10 s) and
// removes the directory. When the demo itself is killed, the processes see the end
// of their stdin and stop.
//
// # Limits
//
// Every datacenter accepts writes from the operators of all other datacenters.
// A real federation need not permit these writes. All addresses are on
// 127.0.0.1, so servers could reach each other without gateways. Tests in
// network namespaces verify that servers use the gateways. Each datacenter has
// one gateway.
package demo
