// SPDX-License-Identifier: MPL-2.0

// Serf is a node of a serf cluster that spans datacenters. It sends one event when
// it has joined, and prints the events of others and each change of the
// membership. Nodes of one datacenter dial each other directly; nodes of different
// datacenters use gateways.
//
// It leaves out what a real program would add: gateways
// that change (Node.SetGateways), certificates that are replaced (Run of
// tlsutil.Identity), and metrics (Node.Tunnel.Stats).
//
// The program starts a wanfed.Node and creates a serf instance on it. It retries the join
// until a member answers. A goroutine, which lives as long as the process, passes
// the addresses of members to the Node. SIGINT and SIGTERM make serf send a leave
// message. The message uses the Node, so the Node ends last.
//
//	serf --listen 127.0.0.1:6202 --cert b.pem --key b-key.pem \
//	    --gateway dc1=127.0.0.1:8441 --join dc1
package main
