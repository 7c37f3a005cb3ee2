// SPDX-License-Identifier: MPL-2.0

// Package dcrpc makes gRPC calls to servers of the local datacenter and of
// other datacenters.
//
//	calls := dcrpc.New(dcrpc.Config{DC: "dc1", PrimaryDC: "dc1", Tunnel: t, Dialer: d, Book: b})
//	go calls.Run(ctx)
//	client := pb.NewFederationServiceClient(calls.Reader("dc2"))
//	states, err := client.List(ctx, &pb.ListFederationStatesRequest{})
//
// # Connections
//
// A [Client] opens a gRPC connection with the first call. It has one connection
// to each called server of the local datacenter, and one connection to any
// server of each other datacenter with a called server. A connection to another
// datacenter is a stream of the tunnel's session with that datacenter (see
// package wanfed).
//
// A connection to another datacenter is closed after 30 seconds without a
// call. The connection to the primary stays open. The Client also dials up to
// maxKeptOpen unreachable datacenters until a dial succeeds.
// [Client.Reachability] reports the change.
//
// Dials are repeated with backoff. Each of these events of a datacenter ends
// the backoff:
//
//   - The paths to the datacenter in the address book change.
//   - A path to the datacenter works again.
//   - A server of the datacenter connects to this server.
//
// A dial in progress is restarted when the paths to its datacenter change.
//
// # Failover
//
// If the response to a call is late, the Client sends a gRPC health check on
// the connection. The check must succeed within two round trips (150 ms to 4
// s). Otherwise the Client considers the path dead and replaces the connection.
// TCP and the keepalive of gRPC (15 s) would detect the failure later. The next
// stream of the session uses another path.
//
//   - A call of [Client.Reader] is repeated at once. Such calls must be
//     idempotent.
//   - A call of [Client.Writer] is never repeated. It waits two more seconds
//     for a response on the old connection. Then it fails with
//     codes.Unavailable. The server may have executed the call.
//   - A stream ends with codes.Canceled.
//
// A connection is also replaced when its session has moved to a better path.
// Calls in flight then have 30 s to finish.
//
// # Request streams
//
// [Client.Query] sends reads of the HTTP API over one stream for each
// datacenter. Requests that wait while a message is sent share the next
// message. Identical waiting requests are sent once. A request costs half as
// much as a call: see docs/decisions/0030. [ServeRequests] serves the stream.
// If a server does not support request streams, Query makes calls instead.
//
// # Concurrency and limits
//
// All methods may be called from any goroutine. [Client.Run] joins all
// goroutines and closes all connections before it returns. Later calls fail. A
// request stream has at most 1024 requests without a response. Query makes
// calls for further requests.
package dcrpc
