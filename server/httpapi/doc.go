// SPDX-License-Identifier: MPL-2.0

// Package httpapi is the HTTP API of one server: what people, scripts and tools written for Consul ask. It turns requests
// into calls of a Source and its answers into JSON (types of package api). It leaves to others what the answers are, the
// listener with its TLS, and who may connect.
//
// # Flow
//
// A request passes the host check, then who asks is found out (Config.Peer), then comes the mux (404 for unknown paths, 405 with
// Allow for other methods), then its parameters and body are read (400 when one is malformed). With ?dc=OTHER it goes to
// Source.Query, which asks a server there over gRPC; that server calls Serve, which runs the request through its own handler,
// so that the answer is the one its own HTTP API gives. A request served by Serve is never sent on to a third datacenter.
//
// What is stored blocks when ?index=N is what the store has: until it changes, or until wait (default api.DefaultWait,
// at most api.MaxWait) and a random sixteenth more is over. An index lower than N, as after a restored store, answers at
// once. Keys and the catalog are read as fresh as Consul's clients expect (blocking.go); federation states as they are here.
//
// # Safety
//
// Who has no certificate only reads: writes are refused with 403 unless the peer is an operator or a server, and then it is for
// the records' types to say what it may. Bound to the loopback, reading has no other guard, so a web page must not be able to ask
// through a browser: requests whose Host is a DNS name other than localhost or a configured name are refused with 403
// (DNS rebinding), and no CORS header is ever sent; nor can a page write with a certificate that the browser has: PUT and DELETE
// need CORS's leave, and nothing here is written by POST. What comes from another datacenter is relayed with a fixed set of
// headers, as JSON or as plain text, never as HTML.
//
// # Goroutines and time
//
// It starts none. Blocking ends with the request's context: the http.Server should have its BaseContext cancelled when
// it stops, then blocked requests answer 503 at once. Each request sets its own write deadline (its longest wait plus 30
// seconds), so the http.Server needs no WriteTimeout; it should have a ReadHeaderTimeout and an IdleTimeout.
//
//	h, err := httpapi.New(httpapi.Config{DC: "dc1", Source: src, Metrics: promhttp.Handler(), Logger: logger})
//	srv := &http.Server{Handler: h, ReadHeaderTimeout: 5 * time.Second, BaseContext: func(net.Listener) context.Context { return ctx }}
//
// and in the gRPC service:
//
//	func (s *service) Query(ctx context.Context, req *pb.QueryRequest) (*pb.QueryResponse, error) {
//		return httpapi.Serve(ctx, s.handler, req)
//	}
package httpapi
