// SPDX-License-Identifier: MPL-2.0

// Package proxycfg gives a gateway its routes. Over the API of its datacenter's servers it registers the gateway, follows the
// snapshot (everything one gateway must know, complete and consistent), and turns each one into the tables of the
// gateway's two sides.
//
// It leaves to others: forwarding (package gateway), what a snapshot says (package federation computes it on the servers), and
// listeners.
//
// # Flow
//
// Client.Run dials any server (the configured addresses, and those of the last snapshot) with SNI server.<dc>.<domain>.
// A server that does not answer soon does not hold it up: the next is dialled too. It calls Register once it has routes, for each new
// connection, and every interval the server asks for: that is the heartbeat. Beside it, it follows Watch: each snapshot
// replaces both tables and is kept on disk. Without any server, after a restart too, the gateway routes by the snapshot on
// disk. At the end it calls Deregister, so that no datacenter uses this gateway any more.
//
// # Routes
//
// The WAN side, where other datacenters connect, leads to servers of this datacenter and nowhere else: no loop and no open
// relay is possible. The LAN side, where this datacenter's servers connect, leads to other datacenters' gateways too. What
// cannot be routed by is left out with a warning; the rest is used. A snapshot without any server is not used if the one before
// had some: its sender has only just started.
//
// # Goroutines
//
// Run joins its two loops. A snapshot is applied by the loop that received it; SetTable is atomic.
//
// # Limits
//
// Snapshots come whole; one has at most api.MaxMessageSize bytes. The file is bound to datacenter and domain, and has a
// checksum: a damaged or foreign one is ignored with a warning.
//
//	c, err := proxycfg.New(proxycfg.Config{
//		Identity: id, Servers: []string{"10.0.0.5:8300"}, LAN: "10.0.0.5:8444", WAN: "198.51.100.1:8443",
//		DataDir: "/var/lib/wanfed/gateway", LANListener: lan, WANListener: wan, Logger: logger,
//	})
//	...
//	err = c.Run(ctx)
package proxycfg
