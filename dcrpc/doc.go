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
// call. The connection to the primary stays open. So does one to a datacenter
// that is lost: it is dialed until it works, which shows in
// [Client.Reachability].
//
// Dials are repeated with backoff. News of a datacenter end the backoff: other
// paths in the address book, a path that works again, or a server of it that
// connected to this one. A dial whose paths changed is restarted.
//
// # Failover
//
// A call that is not answered in time has its connection checked: a gRPC health
// check must be answered within two round trips (150 ms to 1 s). If it is not,
// the path is dead, long before TCP or gRPC's keepalive (15 s) would notice.
// The next stream of the session takes another path, and the connection is
// replaced.
//
//   - A call of [Client.Reader] is repeated at once. Such calls must be idempotent.
//   - A call of [Client.Writer] is never repeated. It waits two more seconds for the
//     old connection, and fails with codes.Unavailable: it may have been carried out.
//   - A stream ends with codes.Canceled.
//
// A connection is also replaced when its session has moved to a better path.
// Calls then have 30 s to finish.
//
// # Request streams
//
// [Client.Query] sends reads of the HTTP API over one stream for each
// datacenter. Requests that wait while a message is sent share the next
// message, and identical ones among them are sent once. That costs half of what
// a call for each costs: see docs/decisions/0030. [ServeRequests] is the other
// end. A server without request streams gets calls.
//
// # Concurrency and limits
//
// All methods may be called from any goroutine. [Client.Run] joins all
// goroutines and closes all connections before it returns; calls fail then. A
// request stream has at most 1024 requests without a response. More requests
// become calls.
package dcrpc
