// SPDX-License-Identifier: MPL-2.0

// Controller is a program that runs a controller outside of a server. For each
// node of the catalog, it writes a document with the checks of the node that do
// not pass. docs/writing-a-controller.md explains it.
//
//	controller --server 127.0.0.1:8300 --datacenter dc1 --ca ca.pem \
//	    --cert dc1-operator-cli.pem --key dc1-operator-cli-key.pem
//
// Several copies of the program can run. The copy that holds the lease
// "node-health" runs the controller. The others keep their caches up to date, and
// one of them takes over when the holder ends. The program runs until SIGINT or
// SIGTERM. A lost connection is dialed again, and the watches then begin again.
package main
