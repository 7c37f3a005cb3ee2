// SPDX-License-Identifier: MPL-2.0

// Package wanfed connects servers of datacenters that reach each other only
// through gateways. It carries the packets and streams of memberlist, and gRPC,
// in TLS 1.3 connections with certificates on both sides. The SNI of a
// connection names the target, and its ALPN value names the protocol. Gateways
// forward connections by SNI and do not decrypt them.
//
// A program that uses memberlist or serf needs only this package and package
// tlsutil, which issues and loads certificates. Package gateway implements the
// gateway. SPEC.md specifies the bytes on the wire.
//
// # Example
//
// A server of dc1 joins a memberlist pool in dc2:
//
//	id, err := tlsutil.Load(files, tlsutil.DefaultDomain, nil)
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
// # Parts
//
// A [Node] is complete. A program with special needs builds the parts one by
// one:
//
//   - [SharedAddressBook] lists the paths to each datacenter. A path is an
//     address to dial. The program supplies the paths.
//   - [Dialer] opens connections over the best path of the address book.
//   - [Mux] accepts connections on one port and passes each connection to the
//     handler of its protocol.
//   - [Tunnel] carries packets and streams of the gossip pools, and gRPC. It
//     implements the transport of memberlist.
//   - [Prober] probes paths that no connection uses.
//
// # Packets and streams
//
// A Tunnel has one link per datacenter: a queue of packets and at most one
// connection. memberlist calls Transport.WriteToAddress, which copies a packet
// into the queue. The goroutine of the link dials if necessary, and writes all
// queued packets at once. Any server of the other datacenter may receive a
// packet. It passes the packet to its own memberlist, or relays the packet to
// the target. Inside a datacenter, servers dial each other directly. With more than
// 24 links, a new link first sends over a connection that the other datacenter has
// dialed, if there is one.
//
// A stream of memberlist, or of Tunnel.DialGRPC, is a stream of one yamux
// session per datacenter. Streams are relayed in the same way, except gRPC.
// ALPN also detects servers that speak Consul's WAN gossip protocols.
//
// # Choice of the path
//
// Mode selects which paths are dialed first. The other paths are the fallback.
// Among paths of one kind, a recent success comes first, and a recent failure
// comes last. Dials, echoes and probes supply the measurements.
//
// Links and sessions migrate to a better path without the loss of a packet or a
// stream. Connections that Dial returned do not migrate. When a response over a
// session is late, the session is probed, and a standby session is opened over
// another path.
//
// # Goroutines
//
// Mux.Run has one goroutine per accepted connection, Tunnel.Run two per link
// and per session, and Prober.Run at most four. Each Run joins its goroutines
// when its context ends. Node.Run calls all three. A Dialer has goroutines only
// during a call of Dial.
//
// # Guarantees
//
//   - WriteToAddress never waits for a dial, for a peer, or for a lock that is
//     held during a dial. A full queue drops its oldest packets and counts
//     them.
//   - Every network operation ends with its deadline and its context.
//   - A slow or dead datacenter does not delay the others.
//   - The certificate of a peer is its identity.
//   - Packets of one connection keep their order. Like datagrams, packets may
//     be lost when a connection fails.
//   - A Dialer has at most 128 dials of other datacenters in progress, and
//     fewer while dials are slow.
//   - At 2,048 handshakes, a Mux sheds handshakes of the client with most of
//     them, or slow ones within a quarter of a second. Clients share the
//     processor time of handshakes in turns.
//
// # Limits
//
//   - A packet has at most MaxPacket bytes.
//   - Node and datacenter names are DNS labels.
//   - A DNS name is resolved at most once every 5 s. While the lookup fails,
//     the last known addresses are used.
//   - Nothing is stored on disk. The measurements of paths are lost when the
//     process ends.
//   - TLS sessions are not resumed.
package wanfed
