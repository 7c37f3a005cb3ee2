// SPDX-License-Identifier: MPL-2.0

// Package upstream selects one of several addresses of an upstream and connects
// to it.
//
// # Flow
//
// A [Selection] decides the order and times of attempts. The first attempt goes
// to the address with the fewest connections, or to the first one of an ordered
// list. The next attempt starts as soon as one fails, or takes longer than this
// address usually does, in the manner of happy eyeballs (RFC 8305, section 5).
// The first address that answers wins. A Selection does no I/O:
// [Dialer.DialAny] runs one with a goroutine per attempt, and the event-driven
// engine runs one with non-blocking sockets.
//
// An answer is an open connection or, if the [Request] has a ClientHello, the
// first TLS record that comes back. So an upstream that accepts and then stays
// silent does not win.
//
// A [Dialer] records for each address the response time, smoothed as in RFC
// 6298, the open connections and the last failure. An address that failed is
// ejected: it is tried last, and probed next to a working one until it answers
// again. Clients without another address probe it themselves, a bounded number
// at a time (circuit breaker).
//
//	d := &upstream.Dialer{Dial: dial, Timeout: 5 * time.Second, AttemptDelay: 250 * time.Millisecond}
//	conn, addr, err := d.DialFirst(ctx, []string{"10.0.0.1:8300", "10.0.0.2:8300"})
//	...
//	d.Wait()
//
// # Goroutines and limits
//
// All methods of a Dialer are safe for concurrent use. Its goroutines end soon
// after the call that started them; Wait joins them. The response times of at
// most a few thousand unused addresses are kept. A selection accepts at most 16
// addresses that become known while it runs.
package upstream
