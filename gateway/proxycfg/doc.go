// SPDX-License-Identifier: MPL-2.0

// Package proxycfg computes the snapshot of each gateway: the complete and
// consistent configuration of one gateway. It also runs the client of a gateway
// process, which registers the gateway and applies its snapshot.
//
//	c, err := proxycfg.New(proxycfg.Config{
//		Identity: id, Servers: []string{"10.0.0.5:8300"}, LAN: "10.0.0.5:8444", WAN: "198.51.100.1:8443",
//		DataDir: "/var/lib/wanfed/gateway", LANListener: lan, WANListener: wan, Logger: logger,
//	})
//	...
//	err = c.Run(ctx)
//
// # Snapshots
//
// A source of data writes [Inputs]: the servers of the local datacenter, and
// the other datacenters with their gateways. In a server, [Inputs.Follow] is
// the source, with what package federation computes from the store. In a
// gateway process, [Client] is the source, with the messages of a server, the
// responses of a Consul agent, or the last message on disk. Invalid parts of the
// data are logged and omitted. All sources pass one conformance suite.
//
// A [Manager] has a state machine for each registered gateway: one goroutine,
// which waits for changes of the registration and of the inputs. After a change
// it builds a [Snapshot]. It delivers a snapshot only if the snapshot is
// complete and has changed. Changes within 20 ms cost one snapshot. A reader
// receives the newest snapshot and a channel that is closed at the next change,
// so no queue exists. A Client registers its own gateway with its own Manager.
// A server registers the gateways of its catalog.
//
// # Client
//
// [Client.Run] connects to one server, with SNI server.<dc>.<domain>. The
// address is configured or comes from the last snapshot. If a server does not
// respond soon, Run also tries the next one. Run follows the stream Watch: each
// message becomes the inputs and is stored on disk. When the gateway has
// routes, Run calls Register on each new connection, and then as a heartbeat at
// the interval that the server requests. While no server is reachable, also
// after a restart, the gateway routes by the stored message. When its context
// ends, Run calls Deregister, and the datacenters stop using this gateway.
//
// # Consul
//
// With [Config.Consul], the control plane of a Client is a Consul agent, version
// 1.18 to 1.21. The Client registers its gateway as a mesh gateway with a TTL
// check, and removes it at the end. Blocking queries read the servers of the
// datacenter, the gateways of all datacenters and the registration of the
// gateway. A query begins without an index after an error and when the index
// decreases. Queries of one kind have a minimum interval and jittered backoff,
// and respect Retry-After (package api/consul). Registration is a state of one
// agent, so there is one address.
//
// # Routes
//
// [Tables] turns a snapshot into the tables of the native gateway. Other
// datacenters connect to the WAN listener, which routes only to servers of this
// datacenter. Neither a loop nor an open relay is therefore possible. The
// servers of this datacenter connect to the LAN listener, which also routes to
// the gateways of other datacenters.
//
// # Guarantees and limits
//
// A Client ignores a stored message that is damaged or of another datacenter.
// A list without servers is incomplete, because its sender has only just
// started: the previous snapshot stays. If the index of a Consul agent decreases
// while no query is pending, as in a restart between two queries, the Client uses
// the previous data for up to 11 s. Client.Run returns an error only if no server
// answers and the data directory was deleted.
package proxycfg
