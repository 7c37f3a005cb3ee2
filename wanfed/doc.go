// SPDX-License-Identifier: MPL-2.0

// Package wanfed is the tunnel between datacenters that reach each other only
// through gateways. Gossip packets, memberlist streams and gRPC travel in TLS
// connections. Their SNI names the target and their ALPN names the protocol, so
// gateways forward them without decrypting them. A program on memberlist or
// serf needs only this package and tlsutil.
//
// # Parts
//
//   - [Dialer] opens connections over the best path of the address book.
//   - [Mux] accepts connections on one port and passes them on by protocol.
//   - [Tunnel] carries packets and streams of the gossip pools and implements
//     memberlist's transport.
//   - [Prober] probes paths that no connection uses.
//   - [Node] is all of these, wired together, for programs without special
//     needs.
//
// The package does not decide what the address book contains, does not
// implement the gateway, does not issue certificates (see tlsutil), and keeps
// no state on disk. SPEC.md describes the bytes on the wire.
//
// # Example
//
//	node, err := wanfed.NewNode(wanfed.NodeConfig{
//		Identity: id, Advertise: "10.0.0.1:8300",
//		Gateways: map[string][]string{"dc2": {"gw.dc2.example:8443"}},
//	})
//	go node.Run(ctx, listener)
//
//	conf := memberlist.DefaultWANConfig()
//	conf.Name, conf.RequireNodeNames = node.Name(), true
//	conf.Transport = node.Tunnel.Transport(wanfed.PoolWAN)
//	list, err := memberlist.Create(conf)
//	_, err = list.Join([]string{wanfed.AnyServer("dc2")})
//
// # Flow
//
// memberlist calls Transport.WriteToAddress, which copies the packet into the
// queue of the link to the target's datacenter. The goroutine of the link dials
// unless the link is connected, and writes all queued packets at once. A server
// of the other datacenter passes the packet to its own memberlist, or relays
// the packet to the target. Inside a datacenter servers are dialed directly.
//
// Streams, and gRPC (Tunnel.DialGRPC), are streams of one yamux session per
// datacenter, and are relayed in the same way. Servers that speak Consul's WAN
// gossip protocols are detected by ALPN.
//
// # Paths
//
// Mode selects which paths are dialed first; the others are the fallback. Paths
// that failed recently come last, and paths that worked recently come first.
// Dials, echoes and probes supply the measurements. Links and sessions migrate
// to a better path without the loss of a packet or a stream. Connections that
// Dial returned do not migrate. When a response over a session is late, the
// session is probed and a standby session is opened over another path.
//
// # Goroutines
//
// Mux.Run has one goroutine per accepted connection, Tunnel.Run two per link
// and per session, Prober.Run at most four. Run joins them when its context
// ends; Node.Run is all three. A Dialer has goroutines only during a call of
// Dial.
//
// # Guarantees
//
//   - WriteToAddress never waits for a dial, for a peer, or for a lock that is
//     held during a dial. A full queue drops its oldest packets and counts
//     them.
//   - Every network operation ends with its deadline and its context.
//   - A slow or dead datacenter does not delay the others.
//   - The certificate of a peer is its identity.
//   - Packets of one connection keep their order. Like datagrams, they may be
//     lost when a connection is replaced.
//   - At 512 handshakes, a Mux sheds slow handshakes of unauthenticated peers
//     within a quarter of a second.
//
// # Limits
//
// A packet has at most MaxPacket bytes. Node and datacenter names are DNS
// labels. A name is resolved at most once every 5 s. While the lookup fails,
// the last known addresses of the name are used. Measurements of paths are lost
// when the process ends. TLS sessions are not resumed.
package wanfed
