// SPDX-License-Identifier: MPL-2.0

// Package handover lets a new process of the same program take over the listening sockets of an old one, so that the program,
// or its settings, change without one connection refused: the sockets, and the connections that wait at them, are never
// closed. What the processes do with their sockets is left to them.
//
// # Flow
//
// The old process calls Start with duplicates of its sockets, each under a name. The new one calls Take, before it opens anything,
// takes each socket by its name, opens those that are not there, and calls Ready when it serves. Then Start returns in
// the old one, which closes its duplicates and lets its connections come to their end. From its start to there, both processes
// accept connections, each as soon as it can.
//
// The sockets are inherited descriptors; an environment variable, for the new process alone, says which is which. Through a pipe
// the new one says that it is ready. Nothing has a name in the file system, so nobody else can take part: who may signal or
// run the program decides.
//
// A process may also be given its first sockets by the service manager (socket activation). They have addresses, not names;
// Activated finds them.
//
// # When the new process fails
//
// A new process that ends, closes the pipe, or is not ready in time, is killed if need be, and waited for; Start returns why,
// and the old one goes on as if nothing had been. It may try again.
//
// # Goroutines
//
// Start has one that waits for the pipe, and joins it. A new process that is ready is on its own: nobody waits for its end.
//
// # Limits
//
// Unix only. The new process is a child of the old one and inherits its standard streams, working directory and environment. Who
// watches the old process must be told of the new one (Notify does that for systemd), or will take its end for a failure. As
// the first process of a container the old one cannot end without the container.
//
// # Example
//
//	in, err := handover.Take()
//	...
//	ln, ok, err := in.Listener("wan 0.0.0.0:8443")
//	if err == nil && !ok {
//		ln, ok = in.Activated("0.0.0.0:8443")
//	}
//	if err == nil && !ok {
//		ln, err = net.Listen("tcp", "0.0.0.0:8443")
//	}
//	...
//	in.Ready() // and on a signal: handover.Start(ctx, handover.Config{Sockets: ...})
package handover
