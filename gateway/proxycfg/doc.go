// SPDX-License-Identifier: MPL-2.0

// Package proxycfg gets the routes of a gateway from the servers of its
// datacenter. It registers the gateway, follows its snapshot (everything one
// gateway must know, complete and consistent), and builds the route tables of
// its LAN and WAN listeners.
//
// It leaves forwarding to package gateway, and the content of a snapshot to
// package federation, which computes it on the servers.
//
// # Flow
//
// [Client.Run] connects to one server, with SNI server.<dc>.<domain>: to one of
// the configured addresses or of those in the last snapshot. If a server does
// not answer soon, the next one is tried too. Run calls Register once there are
// routes, on each new connection, and at the interval that the server requests:
// that is the heartbeat. At the same time it follows Watch. Each snapshot
// replaces both tables and is stored on disk. Without a server, also after a
// restart, the gateway routes by the stored snapshot. At the end Run calls
// Deregister, so that no datacenter uses this gateway any more.
//
//	c, err := proxycfg.New(proxycfg.Config{
//		Identity: id, Servers: []string{"10.0.0.5:8300"}, LAN: "10.0.0.5:8444", WAN: "198.51.100.1:8443",
//		DataDir: "/var/lib/wanfed/gateway", LANListener: lan, WANListener: wan, Logger: logger,
//	})
//	...
//	err = c.Run(ctx)
//
// # Routes
//
// The WAN listener, where other datacenters connect, leads only to servers of
// this datacenter: neither a loop nor an open relay is possible. The LAN
// listener, where this datacenter's servers connect, also leads to the gateways
// of other datacenters. Invalid parts of a snapshot are left out with a
// warning. A snapshot without servers is ignored if the one before had some:
// its sender has only just started.
//
// # Goroutines and limits
//
// Run joins its two loops. The loop that receives a snapshot applies it. A
// snapshot has at most api.MaxMessageSize bytes. The stored snapshot has a
// checksum and names its datacenter and domain: a damaged or foreign one is
// ignored with a warning.
package proxycfg
