// SPDX-License-Identifier: MPL-2.0

// Package gossiptest has an in-memory network for tests of gossip pools. It works
// with and without testing/synctest. It starts no goroutines.
//
//	var net gossiptest.Network
//	transport := net.Add("srv1.dc1")
//	pool, err := gossip.New(gossip.Config{Name: "srv1.dc1", Transport: transport, ...})
//	...
//	net.Cut("srv1.dc1", true) // other members list it as failed
package gossiptest
