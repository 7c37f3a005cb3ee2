// SPDX-License-Identifier: MPL-2.0

// Serf is a node of a serf cluster that spans datacenters: it sends one event to everybody when it has joined, and prints the
// events of others and each change of the membership. Nodes of one datacenter dial each other; those of different
// datacenters meet through gateways.
//
// It leaves to its user what a real program would add: gateways that change (Node.SetGateways), certificates
// that are replaced (tlsutil's Identity.Run), and metrics (Node.Tunnel.Stats).
//
// The flow: a wanfed.Node of the certificate, the gateways and whom to join starts, serf joins over it and tries again until somebody
// answers, and a goroutine that lives as long as the process tells the Node where others of its datacenter are. SIGINT and
// SIGTERM make serf say goodbye, through the Node, which therefore ends last.
//
//	serf --listen 127.0.0.1:7202 --cert b.pem --key b-key.pem \
//	    --gateway dc1=127.0.0.1:8441 --join dc1
package main
