// SPDX-License-Identifier: MPL-2.0

// Memberlist is a node of a memberlist cluster that spans datacenters: it says who is in the cluster whenever that changes.
// Nodes of one datacenter dial each other; those of different datacenters meet through gateways.
//
// It leaves to its user what a real program would add: messages of its own (memberlist's Delegate), gateways that change
// (Node.SetGateways), certificates that are replaced (tlsutil's Identity.Run), and metrics (Node.Tunnel.Stats).
//
// The flow: a wanfed.Node of the certificate, the gateways and whom to join starts, memberlist joins over it and tries again until somebody
// answers, and a goroutine that lives as long as the process tells the Node where others of its datacenter are. SIGINT and
// SIGTERM make memberlist say goodbye, through the Node, which therefore ends last.
//
// Limits: memberlist does not look again for members that it lost for minutes; a program that must heal such a partition
// calls Join again, or uses serf, which does.
//
//	memberlist --listen 127.0.0.1:7202 --cert b.pem --key b-key.pem \
//	    --gateway dc1=127.0.0.1:8441 --join dc1
package main
