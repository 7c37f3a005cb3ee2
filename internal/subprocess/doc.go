// SPDX-License-Identifier: MPL-2.0

// Package subprocess runs wanfed servers and gateways as processes of this
// machine, for the demo and for end-to-end tests.
//
//	srv, err := subprocess.StartServer(ctx, subprocess.ServerConfig{
//		Program: []string{"bin/wanfed"}, Dir: dir, DC: "dc1", Node: "srv1", TLS: files,
//	})
//	if err != nil {
//		return err
//	}
//	defer srv.Kill()
//	resp, err := http.Get(srv.HTTP + "/v1/status/leader")
//
// # Flow
//
// Start runs a command, sends its output to a log file and waits for the line
// that reports readiness. StartServer and StartGateway build the command line, and
// parse the addresses in that line, so ports may be 0. Stop sends SIGTERM, and
// kills the process when the context ends first. Kill kills it at once. Both
// return when the process has ended.
//
// # Goroutines
//
// Each process has one goroutine that waits for its end and one that copies its
// output. Both end with the process. After a failed Start they have ended.
//
// # End of the parent
//
// The stdin of a process is a pipe that the parent never writes to. The kernel
// closes it when the parent ends, also by SIGKILL. The process runs with
// --stop-on-eof and then stops by itself, see UntilEOF. Each process has its own
// process group: Ctrl-C in a terminal reaches only the parent, which stops the
// processes in order. On Unix the kernel sends SIGHUP to a suspended group that
// loses its parent, so a suspended process ends too.
//
// # Limits
//
// Processes that a child starts are not tracked. Signals are those of os.Process:
// on Windows only Kill works, and Stop closes stdin instead.
package subprocess
