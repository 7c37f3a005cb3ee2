// SPDX-License-Identifier: MPL-2.0

// Package proxycfg receives the routes of a gateway from the servers of its
// datacenter. It registers the gateway and follows its snapshot: the complete
// and consistent configuration of one gateway, which package federation
// computes on the servers. From the snapshot it builds the route tables of the
// LAN and WAN listeners.
//
//	c, err := proxycfg.New(proxycfg.Config{
//		Identity: id, Servers: []string{"10.0.0.5:8300"}, LAN: "10.0.0.5:8444", WAN: "198.51.100.1:8443",
//		DataDir: "/var/lib/wanfed/gateway", LANListener: lan, WANListener: wan, Logger: logger,
//	})
//	...
//	err = c.Run(ctx)
//
// # Flow
//
// [Client.Run] connects to one server, with SNI server.<dc>.<domain>. The
// address is configured or comes from the last snapshot. If a server does not
// respond soon, Run also tries the next one. Run follows the stream Watch: each
// snapshot replaces both tables and is stored on disk. When the gateway has
// routes, Run calls Register on each new connection, and then as a heartbeat at
// the interval that the server requests. While no server is reachable, also
// after a restart, the gateway routes by the stored snapshot. When its context
// ends, Run calls Deregister, and the datacenters stop using this gateway.
//
// # Routes
//
// Other datacenters connect to the WAN listener, which routes only to servers
// of this datacenter. Neither a loop nor an open relay is therefore possible.
// The servers of this datacenter connect to the LAN listener, which also routes
// to the gateways of other datacenters.
//
// # Guarantees and limits
//
// Run logs a warning and ignores invalid parts of a snapshot, and a stored
// snapshot that is damaged or of another datacenter. If the previous snapshot
// had servers, Run ignores a snapshot without servers, because its sender has
// only just started. Run returns an error only if no server answers and the
// data directory was deleted.
package proxycfg
