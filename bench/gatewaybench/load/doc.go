// SPDX-License-Identifier: MPL-2.0

// Package load generates load for a proxy that routes TLS connections by SNI.
// It contains the clients and the servers behind the proxy. The load is the
// same for every proxy: the package needs only its address and process ids.
// Package gatewaybench starts the proxies, chooses the measurements and prints
// tables.
//
// # Protocol
//
// A client sends a ClientHello. With the name TLSName it reaches a TLS server,
// and the handshake follows. With the name RawName it reaches a plain server,
// which reads the ClientHello and then exchanges plain bytes. Without
// cryptography at both ends, the cost of the proxy is easier to measure.
//
// In both cases a request of 64 bytes follows. Its first byte selects whether
// the server responds once, echoes, or sends data without end.
//
// # Flow
//
// Serve runs in the process of the servers. Run does one measurement in the
// process of the clients. It opens connections, waits for Spec.Warmup, and
// reads the clocks of the proxy's processes from /proc. After Spec.Duration it
// reads the clocks again. It returns figures by name, which include the CPU use
// of other processes in that time.
//
// An epoll loop handles the plain connections of each process. Readers of bulk
// data discard it without copying. This keeps the cost of clients and servers
// low compared with that of the proxy. TLS connections use crypto/tls with one
// goroutine each.
//
// # Goroutines
//
// Run and Serve wait for all goroutines that they start. Every wait is bounded:
// connections have deadlines, Run has a time limit, and Serve ends with its
// context.
//
// # Limits
//
// Linux only. The clients and the servers use at most one core each. Latencies
// below about 20 µs are those of clients and servers, not of the proxy.
//
//	servers, err := load.Listen(certDir, "127.0.0.1:0", "127.0.0.1:0")
//	...
//	go servers.Serve(ctx)
//	// A proxy listens on addr. It routes RawName to servers.RawAddr,
//	// and TLSName to servers.TLSAddr.
//	figures, err := load.Run(ctx, load.Spec{
//		Kind: load.Connect, Addr: addr, Conns: 16, Duration: time.Second, PIDs: pids,
//	})
package load
