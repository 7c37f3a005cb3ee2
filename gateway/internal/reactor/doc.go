// SPDX-License-Identifier: MPL-2.0

// Package reactor is the event-driven engine of a gateway. It forwards TCP
// connections with one event loop per processor (epoll, Linux only). An idle
// connection costs two small structs and no goroutine. DESIGN.md explains the
// structure and the reasons.
//
//	e := reactor.New(reactor.Config{Listeners: listeners, Dialer: dialer, ...})
//	err := e.Serve(ctx)
//
// A worker, which runs one event loop, accepts a connection and requests a
// [Session] from the [Handler] of the listener. The worker reads until
// Session.Receive returns the upstream addresses. It connects to one of them
// that package gateway/internal/upstream selects. Then it moves bytes both
// ways: through a buffer of the worker or, if many bytes flow, through a kernel
// pipe (splice).
//
// [Engine.Serve] starts one worker per processor and joins them. A worker owns
// its connections: no other goroutine uses them. If an address is a name, a
// goroutine of the Dialer resolves it, connects, and sends the socket to the
// worker. The guarantees and limits are those of package gateway.
package reactor
