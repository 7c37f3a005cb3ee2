// SPDX-License-Identifier: MPL-2.0

// Package httpapi is the HTTP API of one server, for people, scripts and tools
// written for Consul. It converts requests to calls of a [Cluster] and of the
// resource service, and results to the JSON types of package api. The caller
// provides the listener with its TLS, and decides who may connect.
//
//	h, err := httpapi.New(httpapi.Config{DC: "dc1", Cluster: cluster, Logger: logger})
//	srv := &http.Server{
//		Handler:           h,
//		ReadHeaderTimeout: 5 * time.Second,
//		BaseContext:       func(net.Listener) context.Context { return ctx },
//	}
//
// The gRPC service that serves other datacenters calls [Serve]:
//
//	func (s *service) Query(ctx context.Context, req *pb.QueryRequest) (*pb.QueryResponse, error) {
//		return httpapi.Serve(ctx, s.handler, req)
//	}
//
// # Flow
//
//  1. The Host header is checked, then [Config.Peer] identifies the client.
//  2. The request is routed. [Endpoints] lists all endpoints. An unknown path
//     fails with 404, another method with 405 and an Allow header.
//  3. Parameters and body are read. Malformed ones fail with 400.
//  4. A request with ?dc=OTHER goes to [Cluster.Query], which calls a server of
//     that datacenter by gRPC. That server calls Serve and returns the response
//     of its own HTTP API. A request is forwarded only once.
//
// # Blocking queries
//
// A read of stored data with ?index=N blocks while the index of the data is N.
// The read ends when the data changes or when ?wait has passed (see
// [api.EffectiveWait] and [api.MaxBlockTime]). If the index already differs,
// for example after the restore of a snapshot, the server responds at once.
// Keys and the catalog are read with the consistency that clients of Consul
// expect. Federation states are read from the local store.
//
// # Watches of the status
//
// The status is not stored and has no index, so it has no blocking query.
// [api.StatusPath] with ?watch sends it as server-sent events instead: when it
// changes, and every 5 seconds. It is evaluated twice a second for each watch,
// because it depends on the clock and on many parts of the server. The last event
// is [api.EventEnd] if the server ends the watch.
//
// # Safety
//
// A request with an ACL token of Consul is refused: the caller expects rights that
// the server does not know.
//
// [Config.Policy] decides who may do what, by the certificate of the client or
// by the caller that a server of another datacenter names. A client without a
// certificate may only read. [policy.Engine.Record] receives each write and each
// refused request.
//
// Reads on a loopback address have no further protection, so a web page must
// not reach the API through a browser. A request whose Host is a DNS name other
// than localhost and [Config.Names] fails with 403 (DNS rebinding). No response
// has a CORS header. A page cannot write with a certificate of the browser
// either: PUT and DELETE need CORS, and no endpoint writes by POST.
//
// A response of another datacenter is relayed with a fixed set of headers, as
// JSON or as plain text, never as HTML. The only page of this origin is that of
// [Config.UI], which permits only its own scripts.
//
// # Limits
//
// A request body has at most [MaxRequestBody] bytes and must arrive within 30
// seconds. At most 256 responses above 64 KiB are sent to one peer at a time. A
// further large response fails with 503. One peer has at most 64 watches of the
// status; a further one fails with 503. A response to another datacenter has
// at most [api.MaxMessageSize] bytes.
//
// The package starts no goroutine. A blocking query ends with the context of
// its request and then fails with 503: the http.Server should cancel its
// BaseContext when it stops. Each request sets its own write deadline, its
// longest wait plus 30 seconds. The http.Server therefore needs no
// WriteTimeout, but should have a ReadHeaderTimeout and an IdleTimeout.
package httpapi
