// SPDX-License-Identifier: MPL-2.0

// Package gossip runs one serf gossip pool as a part of a server: the LAN pool (servers of one datacenter) or the WAN pool
// (servers of all datacenters). It turns serf's callbacks into a member list that changes atomically and a channel that
// says so, and serf's life into one Run.
//
// It leaves to others: how packets and streams travel (package wanfed brings the transport), who joins whom (package
// federation for the WAN pool, package server for the LAN pool), and what a member's tags mean.
//
// # Flow
//
// New checks the configuration. Run creates serf over the given transport, then copies every membership event into the
// member list until its context ends, then leaves the pool (so that others see "left" at once, not "failed" later) and shuts
// serf down. Join may be called from Run's start on; before, it waits.
//
// A server that was killed and is back at another address is alive in the others' lists at its old one. The pool finds out
// when one of them tells it, leaves under the old address and comes back under its own (move.go).
//
// # Keys
//
// With a Keyring, gossip is encrypted inside the connections that carry it. One ring, kept on disk, serves both pools of a
// server: their members are the same servers. A Keyring is a value with a version; Seal and Open move it between servers that
// have a key in common. Who changes it, and in what order, is for package server to say. An enciphered packet or stream is
// to the transport like any other.
//
// # Promises
//
// Members never blocks on the network. Changed is closed after the new list is visible. Changes that come one after the other are
// shown together: at least 250 µs for each member, and at most 250 ms, lie between two lists. Identity comes before gossip: only
// verified servers can reach the transport at all, and Admit may refuse members for what they say (two primaries named
// differently, say); a refused member stays out of the list, and the reason is logged. The tags of who was admitted are not decoded again until they
// change, though news of it comes to everybody some thirty times.
//
// # Goroutines
//
// Run joins its own. The libraries start theirs and end them at Shutdown without a join; they hold no connection of ours
// after it, because the transport's owner closes those.
package gossip
