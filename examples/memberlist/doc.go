// SPDX-License-Identifier: MPL-2.0

// Memberlist is a node of a memberlist cluster that spans datacenters. It
// prints the members when they change. Nodes of one datacenter dial each other
// directly. Nodes of different datacenters use gateways.
//
//	memberlist --listen 127.0.0.1:7202 --cert b.pem --key b-key.pem \
//	    --gateway dc1=127.0.0.1:8441 --join dc1
//
// The program starts a wanfed.Node and creates a memberlist on its transport.
// It retries the join until a member responds. A goroutine passes the addresses
// of members to the Node until the process ends. At SIGINT and SIGTERM
// memberlist sends a leave message through the Node, so the Node ends last.
//
// memberlist stops dialing members that it lost minutes ago. A program that
// must heal such a partition calls Join again, or uses serf, which redials
// them.
//
// The program has no application messages (memberlist.Delegate), no changes of
// gateways (Node.SetGateways), no reload of certificates (Identity.Run) and no
// metrics (Node.Tunnel.Stats).
package main
