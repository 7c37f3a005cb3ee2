// SPDX-License-Identifier: MPL-2.0

// Package rpc is the gRPC edge of one server: the part between the connections
// and the gRPC services. The edge authorizes each call, forwards the call to
// the leader of the datacenter if necessary, and limits each peer. Services
// receive only calls that passed these checks.
//
// # Flow
//
//  1. The certificate of the connection identifies the caller. A server may
//     name the caller whose request it forwards. A server of this datacenter
//     may name any caller. A server of another datacenter may name callers of
//     its own datacenter, in methods that are delegable: see policy.Named.
//  2. The rule of the method lists the roles that may call the method. A call
//     of a method without a rule fails with Unimplemented.
//  3. If only the leader may serve the call, the edge forwards the call to the
//     leader, with the identity of the caller. While the datacenter has no
//     leader, the call waits up to 7 seconds.
//  4. The service handles the call. For a resource, package policy and the type
//     decide.
//  5. Each call that changes something, and each refused call, is given to
//     policy.Engine.Record at the server that served it.
//
// # Example
//
//	edge := rpc.New(rpc.Config{DC: "dc1", Node: "srv1", Leader: store, ...})
//	pb.RegisterOperatorServiceServer(edge, operators)
//	if err := edge.RegisterIntrospection(); err != nil {
//		return err
//	}
//	return edge.Serve(ctx, listener)
//
// # Limits
//
// These limits apply to each peer, over all its connections. Servers of this
// datacenter are exempt, because they form one store with this server.
//
//   - Open calls: 16,384 for operators and for servers of other datacenters,
//     1,024 for gateways and clients. A call beyond the limit fails with
//     ResourceExhausted. An open call costs about 12 KiB.
//   - Responses that may be large: 32, from the start of the computation until
//     the response is sent. A further call waits. Each response has at most
//     [api.MaxMessageSize] bytes. A call that waits for a change is not counted.
//   - Federation states: 32 KiB per second after 4 MiB, for all peers with one
//     role of a datacenter. Above it, calls are refused before they are read.
//
// A connection has at most 32,768 calls, with 64 KiB of headers for each call.
//
// # Goroutines
//
// [Edge.Serve] starts the goroutines of gRPC and joins them. When its context
// ends, streams end at once, and unary calls have 2 seconds to finish.
package rpc
