// SPDX-License-Identifier: MPL-2.0

// Package gateway is the data plane of a gateway. It forwards TLS connections
// by the server name (SNI) in their ClientHello and does not decrypt them, so
// it needs neither keys nor certificates. The routes come from package
// gateway/proxycfg or from a route file.
//
//	wan := gateway.NewListener("wan", socket)
//	table, err := gateway.NewTable([]gateway.Route{
//		{Match: "srv1.server.dc1.wanfed", To: []string{"10.0.0.1:8300"}},
//		{Match: "*.server.dc2.wanfed", To: []string{"gw.dc2.example:8443"}, Ordered: true},
//	})
//	...
//	wan.SetTable(table)
//	proxy, err := gateway.New(gateway.Config{Logger: log})
//	...
//	err = proxy.Run(ctx, wan)
//
// # Flow
//
// A [Listener] accepts a connection. The [Policy] of the listener decides
// whether the source address may connect. The source address is the address of
// the peer, or the address in a PROXY header if the policy lists the peer as a
// load balancer. The policy also bounds the rate of new connections of a source.
// If 1,024 ClientHellos are incomplete, the source with most of them gives way.
//
// A [HelloParser] reads the ClientHello within Config.HelloTimeout. The [Table]
// of the listener finds the [Route]: an exact name takes precedence over a
// wildcard, a long wildcard over a short one. A route may list protocols
// (ALPN), of which the client must offer one.
//
// Then the gateway selects an upstream address. The first attempt goes to the
// address with the fewest connections, or to the first address of an ordered
// route. The next attempt starts when an attempt fails or takes longer than
// usual. Every attempt sends the ClientHello, and the first complete TLS record
// wins. In two cases the first open TCP connection wins: if the route has only
// one address, and if the client has sent data after its ClientHello, because
// two servers could act on that data. Bytes are then copied both ways until
// both directions have ended.
//
// A connection that cannot be forwarded is closed, counted by its [Reason] and
// logged at a limited rate. If TLS has an alert for the reason, the client
// receives the alert first. [Listener.Stats] returns the counters.
//
// # Goroutines
//
// Two engines forward connections. On Linux, package gateway/internal/reactor
// runs one event loop per processor. The portable engine runs on every system,
// with two goroutines per connection. The portable engine also serves listeners
// that are not TCP, and proxies with Config.Dial. Further goroutines connect to
// upstreams, and one writes the access log. [Proxy.Run] joins all goroutines
// before it returns.
//
// # Guarantees
//
//   - [Listener.SetTable] and [Listener.SetPolicy] take effect with the next
//     connection. Open connections stay.
//   - An end of data in one direction leaves the other direction open. A
//     failure ends both directions with a reset.
//   - A dead peer is detected within about 30 s. A client that disconnects
//     while an upstream is selected is detected within 250 ms (Linux).
//   - At the limit of connections, a connection whose ClientHello is overdue is
//     closed to admit a new connection. A routed connection is never closed to
//     admit another connection.
//   - When the process is out of file descriptors, new connections are accepted
//     and closed at once. Open connections continue.
//
// # Limits
//
//   - A ClientHello has at most 64 KiB. All ClientHellos larger than 4 KiB
//     share 64 MiB until they are forwarded.
//   - An encrypted ClientHello (ECH) is routed by its outer name.
//   - A connection uses two files, one more for each further address that is
//     tried, and two for each direction that has a pipe. Without a free pipe,
//     bytes are copied.
//   - A client that ends its direction before an upstream has answered counts
//     as disconnected. TLS clients do not do that.
//   - A gateway refuses an upstream that is its own listener. It does not
//     detect a loop over several gateways: routes must not have one.
//   - Metrics are by route class, not by name: unauthenticated clients cannot
//     create series.
package gateway
