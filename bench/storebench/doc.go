// SPDX-License-Identifier: MPL-2.0

// Command storebench compares the store of a wanfed server with etcd. It
// measures writes and reads with different numbers of clients, the time until
// watches receive a write, and memory. It starts one process of each store, on
// 127.0.0.1 and on the same disk, and stops them at the end.
//
// # Flow
//
// In each round, each row runs with both stores one after the other, and each
// round changes the order. The other store is idle. The table shows medians
// over the rounds, the ratio of wanfed to etcd, and whether the goal is met.
//
// # Comparability
//
// The same client measures both stores by gRPC over TLS 1.3, with client
// certificates of the same CA. Requests are encoded by hand, and responses are
// not decoded. 16 clients share a connection. Values have 256 bytes, under
// 10,000 keys. Both stores acknowledge a write after fsync.
//
// A write to wanfed is a Write of its ResourceService (type kv/v1/Entry), which
// reads, validates, and then compares and swaps. A write to etcd is a Put. A
// strong read is a linearizable read of etcd.
//
// The watches use eight connections, each with one loop that reads all streams.
// The writer has its own connection and loop. A watch is a WatchList stream in
// wanfed, and a watch in a shared stream in etcd, as the APIs provide.
//
// The latency of a watch starts when the write is sent. The figures "after
// answer" start when the response to the write arrives, as in etcd's own
// benchmark; they are 0 if the event arrives first. They favor a store that
// responds late: etcd sends events to watches before it responds. The first
// writes, which open the connection, do not count. The measurement takes -for,
// and at least -changes writes.
//
// # The floor
//
// Rows with one client or one watch have a third contender, the floor. It is a
// server that receives the same calls by gRPC and TLS, writes each to a file,
// syncs the file and sends the write to the watches. It is a lower bound: no
// store that uses the same components and syncs each write can be faster.
//
// # Limits
//
// Linux only, because memory is read from /proc. Clients and servers share the
// cores of the machine. Compare ratios: absolute figures depend on the machine.
//
// # Example
//
//	make bench-store
//	make bench-store BENCHFLAGS='-rows write -rounds 5'
package main
