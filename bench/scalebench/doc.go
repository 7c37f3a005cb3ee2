// SPDX-License-Identifier: MPL-2.0

// Command scalebench starts many datacenters at once on this machine. Each
// datacenter is one server process and one gateway process on 127.0.0.1, or, with
// -up, one process of both. It measures how long they take to become whole, and
// their cost at rest.
//
// # Flow
//
// All processes start at the same moment. A federation is whole when every
// server has all members alive in its WAN pool, has the federation states of
// all datacenters with a gateway, and receives answers from four other
// datacenters. After -settle, the processor time and the memory of all
// processes are measured for -for. Then all processes are killed and started
// again, with their data directories and addresses. Each figure is printed next
// to its rule.
//
// # Limits
//
// Linux only: the figures of processes come from /proc. Two cores and 16 GB are
// enough for 100 datacenters. The ports from -port on must be free, ten per
// datacenter. The durations include the start of the processes, and depend on
// the number of cores.
//
// # Example
//
//	make bench-scale N=40
//	make bench-scale N=100 BENCHFLAGS='-settle 0'
//	make bench-scale N=25 BENCHFLAGS=-up
package main
