// SPDX-License-Identifier: MPL-2.0

// Memberlist is a node of a memberlist cluster that spans datacenters: it says who is in the cluster whenever that changes.
// Nodes of one datacenter dial each other; those of different datacenters meet through gateways.
//
// It leaves to its user what a real program would add: messages of its own (memberlist's Delegate), gateways that change
// (store new Routes in the Book), certificates that are replaced (tlsutil's Identity.Run), and metrics (Tunnel.Stats).
//
// The flow: flags fill the Book, the tunnel starts, memberlist joins and tries again until somebody answers, and a goroutine
// that lives as long as the process enters the nodes of the own datacenter in the Book. SIGINT and SIGTERM make the node say
// goodbye, through the tunnel, which therefore ends last.
//
// Limits: memberlist does not look again for members that it lost for minutes; a program that must heal such a partition
// calls Join again, or uses serf, which does.
//
//	memberlist --name b --dc dc2 --listen 127.0.0.1:7202 --cert b.pem --key b-key.pem \
//	    --gateway dc1=127.0.0.1:8441 --join '*.dc1/192.0.2.2:1'
package main
