// SPDX-License-Identifier: MPL-2.0

// Package upstream selects one of several addresses of an upstream and connects
// to it.
//
//	d := &upstream.Dialer{Dial: dial, Timeout: 5 * time.Second, AttemptDelay: 250 * time.Millisecond}
//	conn, addr, err := d.DialFirst(ctx, []string{"10.0.0.1:8300", "10.0.0.2:8300"})
//	...
//	d.Wait()
//
// A [Selection] decides the order and times of connection attempts. The first
// attempt goes to the address with the fewest connections, or to the first
// address of an ordered list. The next attempt starts when an attempt fails or
// takes longer than usual for its address, in the manner of happy eyeballs (RFC
// 8305, section 5). The first address that answers wins. A Selection does no
// I/O: [Dialer.DialAny] runs one with a goroutine per attempt, and the
// event-driven engine runs one with non-blocking sockets.
//
// An answer is an open connection or, if the [Request] has a ClientHello, the
// first TLS record in response. An upstream that accepts a connection and stays
// silent therefore does not win.
//
// A [Dialer] tracks the response time of each address, smoothed as in RFC 6298,
// its open connections and its last failure. An address that failed is ejected:
// it is tried last, and a probe in parallel to a connection checks whether it
// answers again. Clients without another address try it themselves, a bounded
// number at a time (circuit breaker).
package upstream
