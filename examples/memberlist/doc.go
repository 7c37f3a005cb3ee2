// SPDX-License-Identifier: MPL-2.0

// Memberlist is a node of a memberlist cluster that spans datacenters. It prints
// the members when they change. Nodes of one datacenter dial each other directly;
// nodes of different datacenters use gateways.
//
// It leaves out what a real program would add: messages of
// its own (memberlist.Delegate), gateways
// that change (Node.SetGateways), certificates that are replaced (Run of
// tlsutil.Identity), and metrics (Node.Tunnel.Stats).
//
// The program starts a wanfed.Node and creates a memberlist on it. It retries the join
// until a member answers. A goroutine, which lives as long as the process, passes
// the addresses of members to the Node. SIGINT and SIGTERM make memberlist send a leave
// message. The message uses the Node, so the Node ends last.
//
// memberlist does not dial members that it lost minutes ago. A program that must
// heal such a partition calls Join again, or uses serf, which does.
//
//	memberlist --listen 127.0.0.1:7202 --cert b.pem --key b-key.pem \
//	    --gateway dc1=127.0.0.1:8441 --join dc1
package main
