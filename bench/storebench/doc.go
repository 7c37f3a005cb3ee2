// SPDX-License-Identifier: MPL-2.0

// Command storebench compares the store of a wanfed server with etcd: writes and reads at several numbers of clients, the
// time until watchers have a write, and memory. It starts one process of each, on 127.0.0.1 and on the same disk, and ends them.
//
// # Flow
//
// In each round, each row has both contenders one after the other, in another order each time; the one that is not asked is
// idle. At the end come the medians over the rounds, wanfed's ratio to etcd's, and whether the goal is met.
//
// # Like with like
//
// Both are asked by gRPC over TLS 1.3, with client certificates of the same CA, by the same client: messages go out as bytes
// that were encoded for the call, and answers are counted, not decoded. 16 clients share a connection. Watchers are on eight
// connections, each with one loop that reads all of it; who writes to them has a connection and such a loop of its own.
// Values have 256 bytes, under 10,000 keys. A write is acknowledged by both when it is on disk (fsync). wanfed's is a Write
// of its ResourceService (type kv/v1/Entry), which reads, checks and then compares and swaps; etcd's is a plain Put. A strong
// read is a linearizable one of etcd. A watcher is one WatchList of wanfed, one watch in a common stream of etcd: what the two APIs offer.
//
// Until a watcher has a write is counted from when the write is sent, and "after answer" from when its answer comes (0 if the event
// comes first), as etcd's own benchmark does. The latter flatters who answers late: etcd tells watchers before it answers, as far as
// they read. The first writes, which dial, are not counted. Events are as many as come in -for, of at least -changes writes.
//
// # The floor
//
// For one client, and one watcher, a third contender tells what there is to gain: a server that takes the same calls by gRPC and TLS, puts
// each write into a file, syncs that, and passes it on. Nothing that keeps its promises with these parts can be faster.
//
// # Limits
//
// Linux, for the memory of the processes. Clients and servers share the machine's cores: ratios count, figures are those of
// one machine.
//
// # Example
//
//	make bench-store
//	make bench-store BENCHFLAGS='-rows write -rounds 5'
package main
