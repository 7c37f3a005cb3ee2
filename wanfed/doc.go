// SPDX-License-Identifier: MPL-2.0

// Package wanfed is the tunnel through which datacenters that reach each other only by gateways gossip and call each other.
// It can be imported alone: a program on memberlist or serf needs this package and tlsutil.
//
// What it is for: every byte between datacenters goes over TLS connections whose SNI names the target and whose ALPN names
// the protocol, so that gateways can forward them without opening them. The package has both ends of these connections: the
// Dialer, which picks among the ways that the address book (Book) knows; the Mux, which accepts on one port and hands
// connections out by protocol; and the Tunnel, which carries packets and streams of gossip pools and gives memberlist its
// Transport. A Node is these wired together, for programs that need nothing special. The package leaves to others: what the
// book says, what runs on a gateway, certificates (tlsutil), and all state that outlives the process. The bytes on the wire
// are described in SPEC.md.
//
// The flow of a packet: memberlist calls Transport.WriteToAddress, which copies it into the queue of the link to the target's
// datacenter and returns. The link's goroutine dials, when there is no connection, and writes all that is queued at once. A
// server of the other datacenter reads it and gives it to its own memberlist, or queues it for the server it is for. Streams
// (state exchange) are streams of one yamux session per datacenter, relayed in the same way. A program may have gRPC to other
// datacenters on the same session (DialCalls, CallListener). Inside a datacenter the same
// transport dials the servers directly. Servers that speak Consul's WAN gossip protocols are found out, and served, by ALPN;
// their names must be DNS labels too.
//
// Goroutines: Mux.Run has one per connection it accepted. Tunnel.Run has one per link and per session, with a reader each,
// and those of yamux; Prober.Run has one per probe, at most four. They join them when their ctx ends; Node.Run is all three. New
// functions start none. A Dialer has goroutines only while a call of Dial lasts.
//
// Handshakes: TLS sessions are not resumed. A Mux with more
// handshakes than it may do ends those of strangers who say nothing, within a quarter of a second.
//
// Promises: WriteToAddress never waits, for a dial, a peer or a lock held while waiting. A full queue drops its oldest
// packets and counts them. Every network wait ends with a deadline and with its context. One slow or dead datacenter costs
// the others nothing. A peer is who its certificate says. Packets of one connection keep their order; across a reconnect
// they may be lost, as datagrams may.
//
// Which hop: Mode prefers own gateways, those of the far datacenter, or what measures best; the others are the fallback. Within
// that, what failed lately is tried last, what worked lately first, and what is much slower or fails more often behind the
// rest. Dials, echoes of links and a Prober are the evidence. The Prober goes the whole way through hops that nothing uses, two
// a second at most; it is a part of its own, which a Node runs, and without it only dials and echoes tell. A link or session
// moves to a preferred way, or to a much faster one, when the book changes, when a hop works again, and now and then, without
// losing what is under way; connections that others got from Dial stay where they are. Beside a session on which an answer is
// late, another one is opened another way while it is tested, and takes its place when it is dead. Names are resolved at most
// every 5 s, and their last addresses stand in while that fails.
//
// Limits: packets of at most MaxPacket bytes; node and datacenter names are DNS labels. What is known of hops ends with the
// process.
//
// A program on memberlist or serf makes a Node, which wires the parts, and gives its Transport to the library:
//
//	node, err := wanfed.NewNode(wanfed.NodeConfig{
//		Identity: id, Advertise: "10.0.0.1:8300", Gateways: map[string][]string{"dc2": {"gw.dc2.example:8443"}},
//	})
//	go node.Run(ctx, listener)
//
//	conf := memberlist.DefaultWANConfig()
//	conf.Name, conf.RequireNodeNames = node.Name(), true
//	conf.Transport = node.Tunnel.Transport(wanfed.PoolWAN)
//	list, err := memberlist.Create(conf)
//	_, err = list.Join([]string{wanfed.AnyServer("dc2")})
package wanfed
