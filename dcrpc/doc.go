// SPDX-License-Identifier: MPL-2.0

// Package dcrpc makes gRPC calls to servers of the local and of other
// datacenters.
//
//	calls := dcrpc.New(dcrpc.Config{DC: "dc1", PrimaryDC: "dc1", Tunnel: t, Dialer: d, Book: b})
//	go calls.Run(ctx)
//	client := pb.NewFederationServiceClient(calls.Reader("dc2"))
//	states, err := client.List(ctx, &pb.ListFederationStatesRequest{})
//
// # Connections
//
// A [Client] has one gRPC connection to each server of the local datacenter
// that is called, and one to each other datacenter that is called, to any of
// its servers. The latter are streams of the tunnel's sessions, so a server has
// at most two TLS connections to another datacenter: the packet link and the
// session.
//
// A connection to another datacenter is closed after two minutes without a
// call. The connection to the primary stays open. The Client also dials a lost
// datacenter until it is reachable again, and reports that through
// [Client.Reachability].
//
// Dials are repeated with backoff. Each of these events of a datacenter ends the
// backoff: its paths in the address book change, a path works again, or one of
// its servers connects to this server. A dial whose paths changed is restarted.
//
// # Failover
//
// If a call has no response in time, the Client sends a gRPC health check on its
// connection. The check must succeed within two round trips (150 ms to 1 s).
// Otherwise the Client considers the path dead, long before TCP or the keepalive
// of gRPC (15 s) would detect the failure. The next stream of the session takes
// another path, and the connection is replaced.
//
//   - A call of [Client.Reader] is repeated at once. Such calls must be idempotent.
//   - A call of [Client.Writer] is never repeated. It waits two more seconds for a
//     response on the old connection. Then it fails with codes.Unavailable, and
//     may have been executed.
//   - A stream ends with codes.Canceled.
//
// A connection is also replaced when its session has moved to a better path. In
// this case, calls in flight have 30 s to finish.
//
// # Request streams
//
// [Client.Query] sends reads of the HTTP API over one stream for each
// datacenter. Requests that wait while a message is sent share the next
// message, and identical requests among them are sent once. A request costs half
// as much as a call: see docs/decisions/0030. [ServeRequests] serves the stream.
// If a server does not support request streams, Query makes calls instead.
//
// # Concurrency and limits
//
// All methods may be called from any goroutine. [Client.Run] joins all
// goroutines and closes all connections before it returns. Later calls fail. A
// request stream has at most 1024 requests without a response. Query makes calls
// for further requests.
package dcrpc
