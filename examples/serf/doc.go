// SPDX-License-Identifier: MPL-2.0

// Serf is a node of a serf cluster that spans datacenters. It sends one event
// when it has joined. It prints the events of all nodes and each change of the
// membership. Nodes of one datacenter dial each other directly. Nodes of
// different datacenters use gateways.
//
//	serf --listen 127.0.0.1:6202 --cert b.pem --key b-key.pem \
//	    --gateway dc1=127.0.0.1:8441 --join dc1
//
// The program starts a wanfed.Node and creates a serf instance on its
// transport. It retries the join until a member responds. A goroutine passes
// the addresses of members to the Node until the process ends. At SIGINT and
// SIGTERM serf sends a leave message through the Node, so the Node ends last.
//
// The program has no changes of gateways (Node.SetGateways), no reload of
// certificates (Identity.Run) and no metrics (Node.Tunnel.Stats).
package main
