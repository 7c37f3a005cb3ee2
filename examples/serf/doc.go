// SPDX-License-Identifier: MPL-2.0

// Serf is a node of a serf cluster that spans datacenters: it sends one event to everybody when it has joined,
// and prints the events of others and each change of the membership. Nodes of one datacenter dial each other; those of different datacenters
// meet through gateways.
//
// It leaves to its user what a real program would add: gateways that change (store new Routes in the Book), certificates
// that are replaced (tlsutil's Identity.Run), and metrics (Tunnel.Stats).
//
// The flow: flags fill the Book, the tunnel starts, serf joins and tries again until somebody answers, and a goroutine that
// lives as long as the process enters the nodes of the own datacenter in the Book. SIGINT and SIGTERM make the node say
// goodbye, through the tunnel, which therefore ends last.
//
//	serf --name b --dc dc2 --listen 127.0.0.1:7202 --cert b.pem --key b-key.pem \
//	    --gateway dc1=127.0.0.1:8441 --join '*.dc1/192.0.2.2:1'
package main
