// SPDX-License-Identifier: MPL-2.0

// Package hotrestart replaces a process with a new one of the same program
// without closing its listening sockets. The program or its settings change and
// no connection is refused.
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
// # Flow
//
// The old process calls Start with duplicates of its sockets. Each has a name.
// The new process calls Inherit before it opens anything. It takes each socket
// by name, opens the sockets that are missing, and calls Ready when it serves.
// Start then returns in the old process, which closes its sockets and drains its
// connections. Until then both processes accept connections.
//
// The sockets are inherited file descriptors. An environment variable, set for
// the new process only, maps descriptors to names. The new process reports
// readiness through a pipe. Nothing has a name in the file system, so no other
// process can interfere.
//
// The service manager can also open the first sockets (socket activation,
// sd_listen_fds(3)). Such sockets have addresses, not names; Activated finds
// them.
//
// # Failure of the new process
//
// A new process fails when it exits, closes the pipe or exceeds the timeout.
// Start kills it if necessary, waits for it and returns the reason. The old
// process continues unchanged and may call Start again.
//
// # Goroutines
//
// Start joins every goroutine that it starts. A new process that became ready
// is not waited for.
//
// # Limits
//
// Unix only. The new process is a child of the old one and inherits its standard
// streams, working directory and environment. A supervisor of the old process
// must be notified of the new process id (MAINPID= for systemd), or it takes the
// exit of the old process for a failure. The first process of a container cannot
// be replaced: the container ends with it.
package hotrestart
