// SPDX-License-Identifier: MPL-2.0

// Package reactor is the event-driven engine of a gateway. It forwards TCP
// connections with one event loop per processor (epoll, Linux only). An idle
// connection costs two small structs and no goroutine. DESIGN.md explains the
// reasons.
//
// # Flow
//
// A worker, which runs one event loop, accepts a connection and requests a
// [Session] from the [Handler] of the listener. The worker reads until
// Session.Receive returns the upstream addresses. It connects to one of them
// that package gateway/internal/upstream selects. Then it moves bytes both
// ways: through a buffer of the worker or, if many bytes flow, through a kernel
// pipe (splice).
//
//	e := reactor.New(reactor.Config{Listeners: listeners, Dialer: dialer, ...})
//	err := e.Serve(ctx)
//
// # Goroutines
//
// [Engine.Serve] starts one worker per processor and joins them. A worker owns
// its connections: no other goroutine uses them. If an address is a name, a
// goroutine of the Dialer resolves it, connects, and sends the socket to the
// worker.
//
// # Guarantees and limits
//
// An end of data in one direction leaves the other direction open. A failure
// ends both directions with a reset. Data that a peer does not accept stays in
// the socket of the other peer, except for one buffer. A connection uses two
// files, one more for each further address that is tried, and two for each
// pipe.
package reactor
