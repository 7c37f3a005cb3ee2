// SPDX-License-Identifier: MPL-2.0

// Package hotrestart replaces a process with a new process of the same program,
// without closing its listening sockets. The program or its settings change,
// and no connection is refused.
//
//	in, err := hotrestart.Inherit()
//	...
//	ln, ok, err := in.Listener("wan 0.0.0.0:8443")
//	if err == nil && !ok {
//		ln, ok = in.Activated("0.0.0.0:8443")
//	}
//	if err == nil && !ok {
//		ln, err = net.Listen("tcp", "0.0.0.0:8443")
//	}
//	...
//	in.Ready() // and on a signal: hotrestart.Start(ctx, hotrestart.Config{Sockets: ...})
//
// The old process calls Start with named duplicates of its sockets. The new
// process calls Inherit before it opens any file. It takes each socket by name,
// opens the missing sockets, and calls Ready when it serves. Start then returns
// in the old process, which closes its sockets and drains its connections.
// Until then both processes accept connections.
//
// The sockets are inherited file descriptors. An environment variable of the
// new process maps descriptors to names. The new process reports readiness
// through a pipe. Neither has a name in the file system, so no other process
// can interfere.
//
// The service manager can also open the first sockets (socket activation,
// sd_listen_fds(3)). These sockets have addresses but no names. Activated
// returns them.
//
// # Failure of the new process
//
// A new process fails if it exits, closes the pipe or exceeds the timeout.
// Start then kills it if necessary, waits for its end and returns the reason.
// The old process is unchanged and may call Start again.
//
// # Limits
//
// The package supports only Unix. The new process is a child of the old
// process. It inherits the standard streams, the working directory and the
// environment. A supervisor must be notified of the new process id (MAINPID=
// for systemd). Otherwise it takes the exit of the old process for a failure.
// The first process of a container cannot be replaced, because the container
// ends with it.
package hotrestart
