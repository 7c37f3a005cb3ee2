// SPDX-License-Identifier: MPL-2.0

// Package sim simulates a federation of many datacenters in one process and in fake time (testing/synctest), to see how what a
// server does, holds and waits for grows with the federation. It is all tests.
//
// Real are: wanfed's Dialer, Mux and Tunnel with TLS 1.3 and certificates of their own; both gossip pools, serf and memberlist
// with their own timings; federation's address book, joiner and hinter; catalog's gateway heartbeats; replication's streams
// and anti-entropy, by gRPC to the primary.
//
// Not real are:
//
//   - The network: connections in memory, with 40 ms one way between datacenters and none inside one. It has no rate, no loss and no
//     back pressure, and counts bytes without TCP and IP headers. An address where nobody is any more swallows everything.
//   - Gateways: they read ClientHellos with the real parser and route by what a server of their datacenter knows, which is what
//     real ones are told, but then the network joins the two connections.
//   - The store: servers of one datacenter share one in memory, and the first of them leads. There is no Raft, and no disk but
//     for the addresses that servers remember.
//   - gRPC between datacenters: a server has a connection to the primary, as a wanfed server has, but asks the others nothing.
//     TestKeptConnections says what more of them would cost.
//
// Servers share nothing but what any program's parts share: code, and the certificates that crypto/tls has parsed already.
//
// The flow: newWorld builds all; simulate starts every datacenter in the same moment (-sim.start spreads that), waits until all see
// all and have all records, lets ten minutes pass (-sim.settle), measures two idle ones, moves one gateway to another address without a word to anybody, and waits until
// every book has it and no link hangs on the lost path. Everything runs in one bubble and ends with it.
//
// Limits: the cost is this machine's cores and memory. 100 datacenters take half a minute of a core for the start, and 5 s for each minute
// after it; 300 take ten minutes in all, and 7 GiB. 1,000 take 50 minutes of two cores and 20 GB, if they start over 15 s and what
// they tell after that is cut short (-sim.hush; docs/benchmarks.md).
//
//	go test ./sim                                                   # ten datacenters
//	WANFED_BENCH=1 go test -v -timeout 60m -run TestGrowth ./sim    # the table of docs/benchmarks.md
//	WANFED_BENCH=1 go test -v -timeout 60m -run TestGrowth ./sim -sim.sizes 60x1,20x3
//	WANFED_BENCH=1 GOMEMLIMIT=7GiB go test -v -timeout 60m -run TestGrowth ./sim -sim.sizes 300x1 -sim.settle 2m
//	WANFED_BENCH=1 GOGC=70 GOMEMLIMIT=20GiB go test -v -timeout 100m -run TestGrowth ./sim -sim.sizes 1000x1 -sim.links 32 -sim.start 15s -sim.hush -sim.settle 20s
package sim
