// SPDX-License-Identifier: MPL-2.0

// Package subprocess runs wanfed servers and gateways as processes of this machine: for the demo and for end-to-end tests. It
// knows how they are called and what they print when they are ready. What a federation of them should look like is left to
// its callers.
//
// # Flow
//
// Start runs a command, sends its output to a log file and waits for the line that says it is ready. StartServer and
// StartGateway build the command line, and read the addresses from that line (ports may be 0). Stop asks the process to end,
// and kills it when the context ends first; Kill does not ask. Both return when the process is gone.
//
// # Goroutines
//
// One per process waits for its end, and one copies its output. Both end with the process; a failed Start has ended them
// already. Nothing else runs in the background.
//
// # When the parent dies
//
// A process's stdin is a pipe that the parent never writes to. The kernel closes it when the parent ends, however it ends
// (SIGKILL too), and the process, called with --stop-on-eof, stops by itself: see UntilEOF. Each process has its own process
// group, so that Ctrl-C in a terminal reaches the parent alone, which then stops the processes in its own order. On Unix a
// group that loses its parent while it is suspended is hung up by the kernel, so a suspended process goes too.
//
// # Limits
//
// A child that keeps its stdin, or that starts children of its own, is not a wanfed process and not followed. Signals are
// those of os.Process: on Windows only Kill works and Stop closes stdin instead.
//
// # Example
//
//	srv, err := subprocess.StartServer(ctx, subprocess.ServerConfig{
//		Program: []string{"bin/wanfed"}, Dir: dir, DC: "dc1", Node: "srv1", TLS: files,
//	})
//	if err != nil {
//		return err
//	}
//	defer srv.Kill()
//	resp, err := http.Get(srv.HTTP + "/v1/status/leader")
package subprocess
