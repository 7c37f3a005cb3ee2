// SPDX-License-Identifier: MPL-2.0

// Package gateway is the data plane of a gateway: it forwards TLS connections by the server name (SNI) in their ClientHello
// and never opens them. It knows TLS bytes and addresses, nothing else. What the routes are, and where they come from, is
// left to package gateway/proxycfg or to a route file; keys and certificates have no place here.
//
// The flow of one connection: a [boundSocket] accepts it and its [Listener] counts it. A [HelloParser] reads the ClientHello, over as
// many TCP segments and TLS records as it takes, within Config.HelloTimeout. The side's [Table] finds the route: an exact name
// wins over a wildcard, a long wildcard over a short one; it may want one of some protocols (ALPN). The addresses of the route are
// dialled: first the one with the fewest connections, or the first where the route is ordered, the next one as soon as one fails, or
// when it takes longer than it usually does, a stagger at most; all race from then on, and those of a newer table join them. Each gets the hello, and the first whole TLS record that comes back decides: an upstream that accepts and then
// says nothing, hangs up or trickles is no upstream. Then both directions are copied until both have ended. Between bare TCP
// connections the kernel does that (splice).
//
// A connection alone is enough, and gets the bytes that were read, where the route has one address, and where the client has sent
// data with its hello (early data of TLS 1.3, or any bytes behind the hello): two servers could act on that.
//
// An address that failed, or that another overtook, comes last. It is asked again beside one that works, by the hello of one
// client in a while, so that it is in its place again before a client waits for it. Clients that have no other address ask it
// themselves, but only so many at a time; the rest is refused at once.
//
// A connection that cannot be forwarded is closed, counted by its [Reason], and logged: the first of its reason in ten seconds
// at Info, the rest at Debug. Where TLS has an alert for the reason, the client gets it before the close.
//
// Before that, the side's [Policy] says whether the client's address may connect, and how many connections it may have. The
// address is that of the other end, or what the PROXY header of a balancer says that the policy names. All of a
// gateway's connections have a limit too ([Proxy.SetMaxConns]), and the process one of files: when it may open no more, connections
// that come are taken and closed at once rather than left to wait. Those that are there go on: overload costs new ones first.
//
// [Listener.Stats] has counters and, by [RouteClass], how long hellos and dials took. Config.AccessLog gets a line for each connection,
// or for one of so many; when the file is slower than the connections, lines are dropped and counted.
//
// Two engines do this work. [EngineEpoll], on Linux, has one goroutine for each processor, the worker, which waits for events and
// owns the connections that it accepted: nobody else touches them. A connection that is idle costs it two small structs;
// buffers are lent while bytes flow, and a kernel pipe while many do. [EngineNet] has two goroutines for each connection and
// runs everywhere. Beside both, there is one goroutine for each address that is asked (epoll: only for those that are names),
// and one that writes the access log. [Proxy.Run] starts them and joins them all before it returns. When its context ends it
// closes the listeners, gives open connections Config.Drain (or what [Proxy.SetDrain] says, even then) and closes the rest. A
// client that closes while an upstream is waited for is noticed within a stagger (on Linux).
//
// Promises: [Listener.SetTable] takes effect with the next connection and leaves open ones alone. An end of data in one direction
// leaves the other open; a failure ends both. The end of a machine on either side ends the connection within about 30 s. At the
// limit of connections one that has not sent its hello for a while makes room for a new one; a routed one never does.
//
// Limits: a ClientHello has at most 64 KiB; those that are larger than 4 KiB share 64 MiB until they are forwarded. TCP only. An encrypted ClientHello (ECH) routes by its outer name. A connection uses
// two files, one more for each further address that is asked, and two more for each direction that has a pipe; where there are
// no more pipes, bytes are copied. What an upstream may say before it is chosen is one record, of at most 16 KiB. A client that
// ends its direction before that counts as gone: no TLS client does so. A worker lets other goroutines of the process have its
// processor every 2 ms at least; with fewer workers than processors ([Config.Workers]) it keeps it for as long as Go allows. A gateway refuses an upstream that is its own listener, but cannot see a loop over several
// gateways: routes must not have one.
//
//	side := gateway.NewListener("wan")
//	table, err := gateway.NewTable([]gateway.Route{
//		{Match: "srv1.server.dc1.wanfed", To: []string{"10.0.0.1:8300"}},
//		{Match: "*.server.dc2.wanfed", To: []string{"gw.dc2.example:8443"}, Ordered: true},
//	})
//	...
//	side.SetTable(table)
//	proxy, err := gateway.New(gateway.Config{Logger: log})
//	...
//	err = proxy.Run(ctx, gateway.Listener{Listener: ln, Side: side})
package gateway
