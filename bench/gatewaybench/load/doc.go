// SPDX-License-Identifier: MPL-2.0

// Package load drives a proxy that routes TLS connections by SNI: it has the clients, and the servers behind the proxy. It
// knows the proxy's address and process ids, not what it is; the same load goes to each contender. Starting contenders,
// choosing what to measure and making tables of it is left to package gatewaybench.
//
// # Protocol
//
// A client sends a ClientHello. Behind TLSName there is a TLS server, and the handshake follows. Behind RawName there is a
// server that reads the hello, which is a real one, and takes plain bytes from then on, so that cryptography at the ends does
// not hide the proxy. Either way a request of 64 bytes comes next; its first byte says what the server shall do: answer
// once, echo, or send without end.
//
// # Flow
//
// Serve is the servers' process, Run one measurement in the clients' process. Run opens connections, lets them warm up,
// reads the clocks of the proxy's processes from /proc, goes on for Spec.For, reads them again, and returns figures by
// name. What other processes used of the machine meanwhile is among them.
//
// Plain connections are driven by one epoll loop on either end, and a reader of bulk data drops it without copying it: the
// less the ends cost, the more of what is measured is the proxy. TLS is crypto/tls with a goroutine per connection.
//
// # Goroutines
//
// Run and Serve join what they start. Each wait has an end: connections have deadlines, Run gives up in a bounded time, and
// Serve ends with its context.
//
// # Limits
//
// Linux only. Both ends are meant for one core each at most; latencies below some 20 µs are theirs, not the proxy's.
//
//	servers, err := load.Listen(certDir, "127.0.0.1:0", "127.0.0.1:0")
//	...
//	go servers.Serve(ctx)
//	// a proxy listens on addr and leads RawName to servers.RawAddr, TLSName to servers.TLSAddr
//	figures, err := load.Run(ctx, load.Spec{Kind: load.Connect, Addr: addr, Conns: 16, For: time.Second, PIDs: pids})
package load
