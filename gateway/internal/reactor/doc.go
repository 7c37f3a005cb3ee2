// SPDX-License-Identifier: MPL-2.0

// Package reactor is the event-driven engine of a gateway: it forwards TCP
// connections with one event loop per processor (epoll, Linux only). An idle
// connection costs two small structs and no goroutine. DESIGN.md explains the
// reasons.
//
// # Flow
//
// A worker accepts a connection and requests from the [Handler] a [Session]. It
// reads until Session.Receive has the ClientHello, and connects to an upstream
// that package gateway/internal/upstream selects. Then it moves bytes both
// ways: through a buffer of the worker or, if many bytes flow, through a kernel
// pipe (splice).
//
//	e := reactor.New(reactor.Config{Listeners: listeners, Handler: handler, Dialer: dialer, ...})
//	err := e.Serve(ctx)
//
// # Goroutines
//
// [Engine.Serve] starts one worker per processor and joins them. A worker owns
// its connections: no other goroutine uses them. Addresses that are names are
// resolved in goroutines of the Dialer, which send the socket to the worker.
//
// # Guarantees and limits
//
// An end of data in one direction leaves the other direction open. A failure
// ends both directions with a reset. Data that a peer does not accept stays in
// the socket of the other peer, except for one buffer. A connection uses two
// files, one more for each further address that is tried, and two for each
// pipe.
package reactor
