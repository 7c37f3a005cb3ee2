// SPDX-License-Identifier: MPL-2.0

// Package sim simulates a federation of many datacenters in one process and in
// fake time (testing/synctest). It measures how the traffic, memory and delays
// of a server grow with the federation. It contains only tests.
//
// The following parts are real:
//
//   - the Dialer, Mux and Tunnel of package wanfed, with TLS 1.3 and their own
//     certificates
//   - both gossip pools: serf and memberlist with their normal intervals
//   - the address book, joiner and gateway tag of package federation
//   - the gateway heartbeats of package catalog
//   - the streams and anti-entropy of package replication, by gRPC to the
//     primary
//
// The following parts are simulated:
//
//   - Network: connections in memory, with 40 ms one way between datacenters
//     and no delay inside one. They have no rate limit, loss or backpressure.
//     Traffic is counted without TCP and IP headers. An unused address discards
//     everything.
//   - Gateways: they read ClientHellos with the real parser. They route by the
//     address book of a server of their datacenter, which a real gateway
//     receives as a replica. The network then joins the two connections.
//   - Store: the servers of one datacenter share a store in memory, and the
//     first server is the leader. Raft is not used. Only address caches
//     are on disk.
//   - gRPC between datacenters: a server has a connection to the primary, as a
//     real server has, but none to the others. TestIdleConnectionCost measures
//     what more connections would cost.
//
// Servers share only code and the certificates that crypto/tls has parsed.
//
// # Flow
//
// newWorld builds the federation. simulate starts all datacenters at the same
// time, or spread over -sim.start. It waits until all servers see all others
// and have all federation states, and then for -sim.settle (9 minutes). It
// measures two idle minutes. It then moves one gateway to another address
// without any notification. It waits until every address book has the new
// address and no link uses the lost path. Everything runs in one synctest
// bubble and ends with it.
//
// # Limits
//
// Cores and memory of the machine limit the size. 100 datacenters need half a
// minute of CPU time to start, and 5 s for each minute after it. 300
// datacenters need ten minutes in total, and 7 GiB. 1,000 datacenters need 50
// minutes of two cores and 20 GB. They must start over 15 s, and the flag
// -sim.drop-gossip must drop the gossip that is queued after convergence.
//
//	go test ./sim                                                   # ten datacenters
//	WANFED_BENCH=1 go test -v -timeout 60m -run TestGrowth ./sim    # all sizes
//	WANFED_BENCH=1 go test -v -timeout 60m -run TestGrowth ./sim -sim.sizes 60x1,20x3
//	WANFED_BENCH=1 GOMEMLIMIT=7GiB go test -v -timeout 60m -run TestGrowth ./sim -sim.sizes 300x1 -sim.settle 2m
//	WANFED_BENCH=1 GOGC=70 GOMEMLIMIT=20GiB go test -v -timeout 100m -run TestGrowth ./sim -sim.sizes 1000x1 \
//		-sim.links 32 -sim.start 15s -sim.drop-gossip -sim.settle 20s
package sim
