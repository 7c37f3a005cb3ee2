// SPDX-License-Identifier: MPL-2.0

// Package demo runs a whole federation on one machine, proves that it works, and shows it. Everything is real: servers and
// gateways are processes of the wanfed binary, with certificates of a CA of their own, and each cross-datacenter byte goes
// through two gateways, on loopback addresses. It needs no root, no other program and no file but its own. How processes are
// started and stopped is left to package internal/subprocess; what they do, to package server and the gateway.
//
// # Flow
//
// The primary's servers start first, then its gateway, whose WAN address the secondaries must be told; then all secondaries
// at once, each its servers and then its gateway. Ports are chosen by the system and read from what the processes print; only
// servers that must know of each other beforehand (more than one in a datacenter) get ports that were free just before.
//
// As soon as a server listens it is watched: it must see every server alive in the WAN pool; then have the federation state of
// every datacenter, with the gateway at the address it really has; then have every other datacenter answer who its
// leader and its members are. The times of these steps count from the start of the first process.
//
// Then the demo prints tables (or JSON: see Report) and follows the processes, which the user may kill and watch, until its
// context ends. With Config.Once it ends by itself, which makes it an end-to-end test.
//
// # Goroutines
//
// One per datacenter while it starts, one per server while it is watched, one per process while it is followed. Run joins
// them all, stops the processes (asking first, killing after 10 s) and removes the folder before it returns. When the demo is
// killed, the processes see their stdin end and stop by themselves.
//
// # Limits
//
// Every datacenter takes writes from the operators of all others, which a real one decides for itself.
// All addresses are on 127.0.0.1, so servers could reach each other without gateways; that they do not is for the tests in
// network namespaces to prove. One gateway per datacenter.
//
// # Example
//
//	err := demo.Run(ctx, demo.Config{Once: true, Out: os.Stdout, Err: os.Stderr})
package demo
