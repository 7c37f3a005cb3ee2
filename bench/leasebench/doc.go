// SPDX-License-Identifier: MPL-2.0

// Command leasebench measures leases on a datacenter of three server processes
// on 127.0.0.1.
//
// # Flow
//
// Client processes acquire -n leases, and each Elector renews its lease every
// -renew. The leases of a process share one client, which sends their renewals
// in batches. With -alone, each lease has its own client on a shared connection,
// so that the servers receive one call per renewal. The processes are connected
// to all servers in turns. The program measures the processor time of the leader
// and of the followers for -for, and counts the entries that were added to the
// Raft log. With -changes, the leadership then moves this often, and lost leases
// are counted.
//
// With -expire, the program acquires -n more leases, renews them by one call, and
// watches how they expire. With -sessions, it creates -n sessions that each lock
// a key, transfers the leadership, and watches how the sessions end. The commit
// that ends a session releases its key. Both
// report the longest time for which a server knew no leader.
//
// # Limits
//
// Linux only: the processor time comes from /proc. The servers and the clients
// share the machine.
//
// # Example
//
//	make bench-lease
//	make bench-lease BENCHFLAGS='-n 1000 -alone -changes 20'
package main
